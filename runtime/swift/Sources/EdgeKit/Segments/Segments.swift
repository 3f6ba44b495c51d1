/// Opens the segments of a bundle: what denoising loops drive where Core ML or MLX computes. For whole generations see
/// `Session.init(bundle:segments:)`.
public final class Segments {
  /// The model. For one thread at a time.
  public let denoiser: any Denoiser
  private let backend: any SegmentBackend
  private let observation: (any MemoryPressureObservation)?

  /// Packages, by the system's runtime or what stands in for it. `weightBytes` bounds the packages that are open at
  /// once, those loaded ahead included; nil: all stay open. Memory pressure has them closed before the next is used.
  ///
  /// Throws `unsupportedBundle` for a bundle of another format, `budgetExceeded`, and what opening throws.
  public init(
    bundle: Bundle, executor: any PackageExecutor, weightBytes: UInt64? = nil,
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    guard case .packages(let programs) = bundle.manifest.programs else {
      throw .unsupportedBundle(
        "\(bundle.path): was exported for \(bundle.manifest.programs.format) and has no packages")
    }
    let file = try FlashFile(path: bundle.url(bundle.manifest.weights.file).path)
    let backend = try PackageBackend(
      bundle: bundle, programs: programs, executor: executor, weightBytes: weightBytes)
    self.backend = backend
    denoiser = SegmentDenoiser(bundle: bundle, file: file, backend: backend)
    observation = memoryPressure?.observe(backend.relieve)
  }

  /// Functions of MLX. `weightBytes` bounds the weights that are in memory at once, those read ahead included; nil: all
  /// stay. Throws as above.
  public init(
    bundle: Bundle, runner: any FunctionRunner, weightBytes: UInt64? = nil,
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    guard case .mlx(let programs) = bundle.manifest.programs else {
      throw .unsupportedBundle("\(bundle.path): was exported for \(bundle.manifest.programs.format), not for mlx")
    }
    let file = try FlashFile(path: bundle.url(bundle.manifest.weights.file).path)
    let backend = try MLXBackend(
      bundle: bundle, programs: programs, file: file, runner: runner, weightBytes: weightBytes)
    self.backend = backend
    denoiser = SegmentDenoiser(bundle: bundle, file: file, backend: backend)
    observation = memoryPressure?.observe(backend.relieve)
  }

  var residency: WeightResidency { backend.residency }
}
