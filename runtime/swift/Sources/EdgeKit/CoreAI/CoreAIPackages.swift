#if canImport(CoreAI) && !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
  import CoreAI
  import Foundation
  import Synchronization

  /// Opens and calls `.aimodel` assets with Core AI.
  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  public struct CoreAIPackages: PackageExecutor {
    private let options: SpecializationOptions

    /// Core AI specializes an asset for the device when it is first opened with these options, and keeps the result in
    /// the application's cache. That can take minutes.
    public init(options: SpecializationOptions = .default) { self.options = options }

    public func open(
      _ url: URL, _ package: PackagePrograms.Package, functions: [String]
    ) throws(EdgeKitError) -> any OpenPackage {
      let opened: CoreAIPackage
      do {
        opened = CoreAIPackage(url, try waitFor { [options] in try await AIModel(contentsOf: url, options: options) })
      } catch {
        throw .engineFailed("\(url.path): Core AI cannot open it (\(error.localizedDescription)); copy it again")
      }
      for function in functions { try opened.load(function) }
      return opened
    }
  }

  /// An asset made ready for this device. The model itself holds no weights: its functions do, each loaded at its first
  /// call.
  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private final class CoreAIPackage: OpenPackage {
    private let url: URL
    private let model: AIModel
    private let functions = Mutex<[String: InferenceFunction]>([:])

    init(_ url: URL, _ model: AIModel) {
      self.url = url
      self.model = model
    }

    @discardableResult
    func load(_ name: String) throws(EdgeKitError) -> InferenceFunction {
      if let known = functions.withLock({ $0[name] }) { return known }
      let loaded: InferenceFunction?
      do { loaded = try model.loadFunction(named: name) } catch {
        throw .engineFailed("\(url.path): Core AI cannot load function \(name) (\(error.localizedDescription))")
      }
      guard let loaded else {
        throw .malformedFile("\(url.path): has no function \(name), which the manifest names; export the bundle again")
      }
      functions.withLock { $0[name] = loaded }
      return loaded
    }

    func call(
      _ name: String, _ function: PackagePrograms.Function, inputs: [String: Tensor]
    ) throws(EdgeKitError) -> [String: Tensor] {
      let loaded = try load(name)
      do {
        return try waitFor {
          var arrays: [String: NDArray] = [:]
          for feature in function.inputs {
            if let tensor = inputs[feature.name] {
              arrays[feature.name] = try array(tensor, loaded.descriptor.inputDescriptor(of: feature.name), feature)
            }
          }
          var found = try await loaded.run(inputs: arrays)
          var outputs: [String: Tensor] = [:]
          for feature in function.outputs {
            if let array = found.remove(feature.name)?.ndArray { outputs[feature.name] = try tensor(array, feature) }
          }
          return outputs
        }
      } catch let error as EdgeKitError {
        throw error
      } catch {
        throw .engineFailed("\(url.path): Core AI failed in function \(name) (\(error.localizedDescription))")
      }
    }

    func close() { functions.withLock { $0 = [:] } }
  }

  /// An array as the function takes it, strides included, with the values of a tensor.
  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func array(
    _ tensor: Tensor, _ descriptor: InferenceValue.Descriptor?, _ feature: PackagePrograms.Feature
  ) throws(EdgeKitError) -> NDArray {
    guard case .ndArray(let wanted)? = descriptor, wanted.shape == tensor.shape, wanted.interleaveLayout == nil else {
      throw misfit(feature)
    }
    var array = NDArray(descriptor: wanted)
    switch wanted.scalarType {
    case .float16: fill(&array, tensor.floats) { Float16($0) }
    case .float32: fill(&array, tensor.floats) { $0 }
    case .int32: fill(&array, tensor.integers) { Int32(clamping: $0) }
    default: throw misfit(feature)
    }
    return array
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func fill<Value, Scalar: BitwiseCopyable>(
    _ array: inout NDArray, _ values: [Value], _ convert: (Value) -> Scalar
  ) {
    let (shape, strides) = (array.shape, array.strides)
    let view = array.mutableView(as: Scalar.self)
    view.withUnsafeMutablePointer { scalars, _, _ in
      for (index, value) in values.enumerated() {
        scalars[stridedOffset(index, shape: shape, strides: strides)] = convert(value)
      }
    }
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func tensor(
    _ array: NDArray, _ feature: PackagePrograms.Feature
  ) throws(EdgeKitError) -> Tensor {
    guard array.interleaveLayout == nil else { throw misfit(feature) }
    switch array.scalarType {
    case .float16: return Tensor(array.shape, scalars(array) { (value: Float16) in Float(value) })
    case .float32: return Tensor(array.shape, scalars(array) { (value: Float) in value })
    case .int32: return Tensor(array.shape, integers: scalars(array) { (value: Int32) in Int64(value) })
    default: throw misfit(feature)
    }
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func scalars<Value, Scalar: BitwiseCopyable>(_ array: NDArray, _ convert: (Scalar) -> Value) -> [Value] {
    let (shape, strides) = (array.shape, array.strides)
    return array.view(as: Scalar.self).withUnsafePointer { scalars, _, _ in
      (0..<shape.reduce(1, *)).map { convert(scalars[stridedOffset($0, shape: shape, strides: strides)]) }
    }
  }

  private func misfit(_ feature: PackagePrograms.Feature) -> EdgeKitError {
    .engineFailed("Core AI has \(feature.name) in another form than the manifest says; export the bundle again")
  }
#endif
