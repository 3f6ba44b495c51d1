#if canImport(Cmlx)
  import Cmlx
  import Foundation
  import Synchronization

  /// Runs function files through mlx-c. Inputs are copied into arrays of MLX's, and every call is evaluated before it
  /// returns: nothing refers to the weights afterwards.
  public final class MLXFunctions: FunctionRunner {
    public enum Device: Sendable {
      case gpu, cpu

      /// The GPU of Apple's systems, the processor elsewhere.
      public static var standard: Device {
        #if canImport(Darwin)
          .gpu
        #else
          .cpu
        #endif
      }
    }

    /// MLX's streams are those of the thread that made them, and functions that are imported run on the first stream of
    /// the process: all sessions compute on one thread.
    private static let thread = ConfinedThread<Void>(name: "edgekit mlx") {}

    private let bundle: Bundle
    private let device: Device
    private var functions: [String: mlx_imported_function] = [:]

    /// Throws `unsupportedBundle` when the bundle is not MLX's.
    public init(bundle: Bundle, device: Device = .standard) throws(EdgeKitError) {
      guard case .mlx = bundle.manifest.programs else {
        throw .unsupportedBundle("\(bundle.path): was exported for \(bundle.manifest.programs.format), not for mlx")
      }
      self.bundle = bundle
      self.device = device
      MLXErrors.install()
      try Self.thread.wait { () throws(EdgeKitError) in try Self.select(device) }
    }

    private static func select(_ device: Device) throws(EdgeKitError) {
      let made = mlx_device_new_type(device == .gpu ? MLX_GPU : MLX_CPU, 0)
      defer { mlx_device_free(made) }
      guard mlx_set_default_device(made) == 0 else { throw MLXErrors.last("the device") }
    }

    deinit { for function in functions.values { mlx_imported_function_free(function) } }

    public func call(
      _ name: String, _ function: MLXPrograms.Function, inputs: [Tensor]
    ) throws(EdgeKitError) -> [Tensor] {
      let file = device == .gpu ? function.gpu.file : function.cpu.file
      return try Self.thread.wait { () throws(EdgeKitError) in
        try Self.select(device)
        return try run(name, file, function, inputs)
      }
    }

    private func run(
      _ name: String, _ file: String, _ function: MLXPrograms.Function, _ inputs: [Tensor]
    ) throws(EdgeKitError) -> [Tensor] {
      let imported = try load(file)
      let arguments = mlx_vector_array_new()
      var results = mlx_vector_array_new()
      defer {
        mlx_vector_array_free(arguments)
        mlx_vector_array_free(results)
        // What MLX keeps of freed arrays would come on top of the budget.
        mlx_clear_cache()
      }
      for tensor in inputs {
        let array = try Self.array(tensor, name)
        mlx_vector_array_append_value(arguments, array)
        mlx_array_free(array)
      }
      guard mlx_imported_function_apply(&results, imported, arguments) == 0, mlx_eval(results) == 0 else {
        throw MLXErrors.last("program \(name)")
      }
      guard mlx_vector_array_size(results) == function.outputs.count else {
        throw .engineFailed("program \(name) gave \(mlx_vector_array_size(results)) arrays; export the bundle again")
      }
      var outputs: [Tensor] = []
      for (index, argument) in function.outputs.enumerated() {
        var array = mlx_array_new()
        defer { mlx_array_free(array) }
        guard mlx_vector_array_get(&array, results, index) == 0 else { throw MLXErrors.last("program \(name)") }
        outputs.append(try Self.tensor(array, argument, name))
      }
      return outputs
    }

    private func load(_ file: String) throws(EdgeKitError) -> mlx_imported_function {
      if let known = functions[file] { return known }
      try bundle.opened().check(file)
      let path = bundle.url(file).path
      let made = mlx_imported_function_new(path)
      guard made.ctx != nil else { throw MLXErrors.last(path) }
      functions[file] = made
      return made
    }

    private static func array(_ tensor: Tensor, _ name: String) throws(EdgeKitError) -> mlx_array {
      func make(_ bytes: UnsafeRawBufferPointer, _ type: mlx_dtype) -> mlx_array {
        // Arrays without elements have no address; MLX copies nothing from this one.
        var nothing: UInt64 = 0
        let shape = tensor.shape.map(Int32.init)
        return withUnsafeBytes(of: &nothing) { empty in
          mlx_array_new_data(bytes.baseAddress ?? empty.baseAddress, shape, Int32(shape.count), type)
        }
      }
      switch tensor.values {
      case .floats(let values): return values.withUnsafeBytes { make($0, MLX_FLOAT32) }
      case .integers(let values): return values.withUnsafeBytes { make($0, MLX_INT64) }
      case .stored(let dtype, let bytes):
        let types = [
          "F32": MLX_FLOAT32, "F16": MLX_FLOAT16, "BF16": MLX_BFLOAT16, "U32": MLX_UINT32, "I64": MLX_INT64,
        ]
        guard let type = types[dtype] else {
          throw .engineFailed("program \(name) takes an array of type \(dtype), which this version does not know")
        }
        return bytes.withUnsafeBytes { make($0, type) }
      }
    }

    private static func tensor(
      _ array: mlx_array, _ argument: MLXPrograms.Argument, _ name: String
    ) throws(EdgeKitError) -> Tensor {
      guard mlx_array_eval(array) == 0 else { throw MLXErrors.last("program \(name)") }
      let shape = (0..<mlx_array_ndim(array)).map { Int(mlx_array_shape(array)[$0]) }
      let count = mlx_array_size(array)
      switch mlx_array_dtype(array) {
      case MLX_FLOAT32:
        return Tensor(shape, Array(UnsafeBufferPointer(start: mlx_array_data_float32(array), count: count)))
      case MLX_INT64:
        return Tensor(shape, integers: Array(UnsafeBufferPointer(start: mlx_array_data_int64(array), count: count)))
      default:
        throw .engineFailed("program \(name) gives \(argument.name) in another type than \(argument.dtype)")
      }
    }
  }

  /// MLX's own handler ends the process.
  private enum MLXErrors {
    private static let message = Mutex("")
    private static let installed: Void = mlx_set_error_handler(
      { text, _ in
        let found = text.map { String(cString: $0) } ?? ""
        MLXErrors.message.withLock { $0 = found }
      }, nil, nil)

    static func install() { installed }

    static func last(_ what: String) -> EdgeKitError {
      let reason = message.withLock { $0 }.split(whereSeparator: \.isWhitespace).joined(separator: " ")
      return .engineFailed("mlx failed in \(what): \(reason)")
    }
  }
#endif
