/// Opens a bundle with an executor of the application's, or for single passes. A `Session` opens what it generates over
/// itself where this build has an executor for the bundle's format; see `Session.init(bundle:segments:)` for others.
public final class Segments {
  /// The model. For one thread at a time.
  public let denoiser: Denoiser

  /// Packages, by the system's runtime or what stands in for it. Of the options, threads do not matter. Memory pressure
  /// has weights given back before the next pass.
  ///
  /// Throws `unsupportedBundle` for a bundle of another format, `budgetExceeded`, and what opening throws.
  public init(
    bundle: Bundle, executor: any PackageExecutor, options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    denoiser = try Denoiser(bundle, .packages(executor), options, memoryPressure)
  }

  /// Functions of MLX. As above.
  public init(
    bundle: Bundle, runner: any FunctionRunner, options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    denoiser = try Denoiser(bundle, .functions(runner), options, memoryPressure)
  }

  /// With this build's own executor for the bundle's format, the native core's among them. Throws `unsupportedBundle`
  /// where there is none, and as above.
  public init(
    bundle: Bundle, options: SessionOptions = SessionOptions(),
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    denoiser = try Denoiser(bundle, try .own(bundle), options, memoryPressure)
  }
}
