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

    public func open(_ url: URL, functions: [String]) throws(EdgeKitError) -> any OpenPackage {
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

    func call(_ function: String, inputs: [PackageArray], outputs: [PackageArray]) throws(EdgeKitError) {
      let loaded = try load(function)
      do {
        try waitFor {
          var arrays: [String: NDArray] = [:]
          for input in inputs {
            arrays[input.name] = try array(input, loaded.descriptor.inputDescriptor(of: input.name))
          }
          var found = try await loaded.run(inputs: arrays)
          for output in outputs {
            guard let array = found.remove(output.name)?.ndArray else { throw misfit(output) }
            try fill(output, array)
          }
        }
      } catch let error as EdgeKitError {
        throw error
      } catch {
        throw .engineFailed("\(url.path): Core AI failed in function \(function) (\(error.localizedDescription))")
      }
    }

    func close() { functions.withLock { $0 = [:] } }
  }

  /// A copy as the function takes it, strides included.
  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func array(_ given: PackageArray, _ descriptor: InferenceValue.Descriptor?) throws(EdgeKitError) -> NDArray {
    guard case .ndArray(let wanted)? = descriptor, wanted.shape == given.shape, wanted.interleaveLayout == nil else {
      throw misfit(given)
    }
    var array = NDArray(descriptor: wanted)
    switch (wanted.scalarType, given.dtype) {
    case (.float16, "float16"): copy(given, to: &array, as: Float16.self)
    case (.float32, "float32"): copy(given, to: &array, as: Float.self)
    case (.int32, "int32"): copy(given, to: &array, as: Int32.self)
    default: throw misfit(given)
    }
    return array
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func copy<Scalar: BitwiseCopyable>(_ given: PackageArray, to array: inout NDArray, as type: Scalar.Type) {
    let strides = array.strides
    let view = array.mutableView(as: type)
    view.withUnsafeMutablePointer { scalars, _, _ in
      given.copy(to: UnsafeMutableRawPointer(scalars), strides: strides)
    }
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func fill(_ output: PackageArray, _ array: NDArray) throws(EdgeKitError) {
    guard array.interleaveLayout == nil, array.shape == output.shape else { throw misfit(output) }
    switch (array.scalarType, output.dtype) {
    case (.float16, "float16"): fill(output, array, as: Float16.self)
    case (.float32, "float32"): fill(output, array, as: Float.self)
    case (.int32, "int32"): fill(output, array, as: Int32.self)
    default: throw misfit(output)
    }
  }

  @available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *)
  private func fill<Scalar: BitwiseCopyable>(_ output: PackageArray, _ array: NDArray, as type: Scalar.Type) {
    array.view(as: type).withUnsafePointer { scalars, _, _ in
      output.fill(from: UnsafeRawPointer(scalars), strides: array.strides)
    }
  }

  private func misfit(_ array: PackageArray) -> EdgeKitError {
    .engineFailed("Core AI has \(array.name) in another form than the manifest says; export the bundle again")
  }
#endif
