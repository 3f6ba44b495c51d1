#if canImport(CoreML)
  import CoreML
  import Foundation
  import Synchronization

  /// Opens and calls `.mlpackage` folders with Core ML.
  public struct CoreMLPackages: PackageExecutor {
    private let computeUnits: MLComputeUnits
    private let compiled: Compiled

    /// Packages are compiled once into `cache`, which belongs to this version of this bundle alone; nil: a folder of the
    /// system's caches named after it. Those of earlier versions stay there until the system wants the room.
    public init(bundle: Bundle, computeUnits: MLComputeUnits = .all, cache: URL? = nil) {
      self.computeUnits = computeUnits
      let name = bundle.manifest.sha256  // it lists the packages too, which another edgekit may write otherwise
      compiled = Compiled(folder: cache ?? URL.cachesDirectory.appending(path: "edgekit/\(name)"))
    }

    public func open(_ url: URL, functions: [String]) throws(EdgeKitError) -> any OpenPackage {
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

    func call(_ function: String, inputs: [PackageArray], outputs: [PackageArray]) throws(EdgeKitError) {
      let model = try load(function)
      let found: any MLFeatureProvider
      do {
        var features: [String: MLFeatureValue] = [:]
        for input in inputs { features[input.name] = MLFeatureValue(multiArray: try multiArray(input)) }
        found = try model.prediction(from: try MLDictionaryFeatureProvider(dictionary: features))
      } catch {
        throw .engineFailed("\(url.path): Core ML failed in function \(function) (\(error.localizedDescription))")
      }
      for output in outputs { try fill(output, found.featureValue(for: output.name)?.multiArrayValue, function) }
    }

    private func fill(_ output: PackageArray, _ found: MLMultiArray?, _ function: String) throws(EdgeKitError) {
      let shape = found?.shape.map(\.intValue)
      guard let found, shape == output.shape, found.dataType == dataType(output) else {
        throw .engineFailed(
          "\(url.path): function \(function) gives \(shape.map { "\($0)" } ?? "nothing") for output \(output.name), the "
            + "manifest says \(output.dtype) \(output.shape); copy or export the bundle again")
      }
      found.withUnsafeBytes { bytes in
        if let start = bytes.baseAddress { output.fill(from: start, strides: found.strides.map(\.intValue)) }
      }
    }

    func close() { models.withLock { $0 = [:] } }
  }

  private func dataType(_ array: PackageArray) -> MLMultiArrayDataType {
    switch array.dtype {
    case "int32": .int32
    case "float16": .float16
    default: .float32
    }
  }

  /// A copy: Core ML may hold it for longer than the call.
  private func multiArray(_ given: PackageArray) throws -> MLMultiArray {
    let array = try MLMultiArray(shape: given.shape.map { NSNumber(value: $0) }, dataType: dataType(given))
    array.withUnsafeMutableBytes { bytes, strides in
      if let start = bytes.baseAddress { given.copy(to: start, strides: strides) }
    }
    return array
  }
#endif
