#if canImport(CoreML)
  import CoreML
  import Foundation
  import Synchronization

  /// Opens and calls `.mlpackage` folders with Core ML.
  public struct CoreMLPackages: PackageExecutor {
    private let computeUnits: MLComputeUnits
    private let compiled: Compiled

    /// Packages are compiled once into `cache`, which belongs to this bundle alone; nil: a folder of the system's
    /// caches named after the bundle.
    public init(bundle: Bundle, computeUnits: MLComputeUnits = .all, cache: URL? = nil) {
      self.computeUnits = computeUnits
      let name = bundle.manifest.weights.sha256
      compiled = Compiled(folder: cache ?? URL.cachesDirectory.appending(path: "edgekit/\(name)"))
    }

    public func open(
      _ url: URL, _ package: PackagePrograms.Package, functions: [String]
    ) throws(EdgeKitError) -> any OpenPackage {
      let opened = CoreMLPackage(try compiled.url(of: url), computeUnits)
      for function in functions { try opened.load(function) }
      return opened
    }
  }

  /// Compiled forms of packages on disk.
  private final class Compiled: Sendable {
    private let folder: URL
    // Compiling the same package twice at once would be twice the memory.
    private let busy = NSLock()

    init(folder: URL) { self.folder = folder }

    func url(of package: URL) throws(EdgeKitError) -> URL {
      let target = folder.appending(path: package.deletingPathExtension().lastPathComponent + ".mlmodelc")
      let outcome: Result<URL, EdgeKitError> = busy.withLock {
        if FileManager.default.fileExists(atPath: target.path) { return .success(target) }
        do {
          // Core ML compiles for tasks alone.
          let made = try waitFor { try await MLModel.compileModel(at: package) }
          try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
          try FileManager.default.moveItem(at: made, to: target)
          return .success(target)
        } catch {
          return .failure(
            .engineFailed("\(package.path): Core ML cannot compile it (\(error.localizedDescription)); copy it again"))
        }
      }
      return try outcome.get()
    }
  }

  /// A compiled package; each of its functions is a model of Core ML's, loaded at its first call.
  private final class CoreMLPackage: OpenPackage {
    private let url: URL
    private let computeUnits: MLComputeUnits
    private let models = Mutex<[String: MLModel]>([:])

    init(_ url: URL, _ computeUnits: MLComputeUnits) {
      self.url = url
      self.computeUnits = computeUnits
    }

    @discardableResult
    func load(_ function: String) throws(EdgeKitError) -> MLModel {
      if let known = models.withLock({ $0[function] }) { return known }
      let configuration = MLModelConfiguration()
      configuration.computeUnits = computeUnits
      configuration.functionName = function
      do {
        let model = try MLModel(contentsOf: url, configuration: configuration)
        models.withLock { $0[function] = model }
        return model
      } catch {
        throw .engineFailed("\(url.path): Core ML cannot load function \(function) (\(error.localizedDescription))")
      }
    }

    func call(
      _ name: String, _ function: PackagePrograms.Function, inputs: [String: Tensor]
    ) throws(EdgeKitError) -> [String: Tensor] {
      let model = try load(name)
      do {
        var features: [String: MLFeatureValue] = [:]
        for feature in function.inputs {
          guard let tensor = inputs[feature.name] else { continue }
          features[feature.name] = MLFeatureValue(multiArray: try multiArray(tensor, feature))
        }
        let found = try model.prediction(from: try MLDictionaryFeatureProvider(dictionary: features))
        var outputs: [String: Tensor] = [:]
        for feature in function.outputs {
          if let array = found.featureValue(for: feature.name)?.multiArrayValue {
            outputs[feature.name] = tensor(array)
          }
        }
        return outputs
      } catch {
        throw .engineFailed("\(url.path): Core ML failed in function \(name) (\(error.localizedDescription))")
      }
    }

    func close() { models.withLock { $0 = [:] } }
  }

  /// In the type that the function declares.
  private func multiArray(_ tensor: Tensor, _ feature: PackagePrograms.Feature) throws -> MLMultiArray {
    let shape = feature.shape.map { NSNumber(value: $0) }
    switch feature.dtype {
    case "int32":
      let array = MLShapedArray<Int32>(scalars: tensor.integers.map { Int32(clamping: $0) }, shape: feature.shape)
      return MLMultiArray(array)
    case "float16":
      let array = try MLMultiArray(shape: shape, dataType: .float16)
      array.withUnsafeMutableBytes { bytes, strides in
        fill(bytes, shape: feature.shape, strides: strides, tensor.floats) { float16Bits($0) }
      }
      return array
    default:
      return MLMultiArray(MLShapedArray<Float>(scalars: tensor.floats, shape: feature.shape))
    }
  }

  /// Writes row-major values where an array's strides say.
  private func fill<Stored>(
    _ bytes: UnsafeMutableRawBufferPointer, shape: [Int], strides: [Int], _ values: [Float],
    _ convert: (Float) -> Stored
  ) {
    let stored = bytes.bindMemory(to: Stored.self)
    for (index, value) in values.enumerated() {
      stored[stridedOffset(index, shape: shape, strides: strides)] = convert(value)
    }
  }

  private func tensor(_ array: MLMultiArray) -> Tensor {
    let shape = array.shape.map(\.intValue)
    let count = shape.reduce(1, *)
    switch array.dataType {
    case .int32:
      return Tensor(shape, integers: MLShapedArray<Int32>(array).scalars.map(Int64.init))
    case .float16:
      return array.withUnsafeBytes { bytes in
        let stored = bytes.bindMemory(to: UInt16.self)
        let strides = array.strides.map(\.intValue)
        let values = (0..<count).map { float16(stored[stridedOffset($0, shape: shape, strides: strides)]) }
        return Tensor(shape, values)
      }
    default:
      return Tensor(shape, MLShapedArray<Float>(converting: array).scalars)
    }
  }
#endif
