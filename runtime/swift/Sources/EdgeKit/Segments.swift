/// Opens the segments of a bundle: what samplers ask for passes where Core ML, Core AI or MLX computes. A `Session` opens
/// them itself where this build has an executor for the bundle's format; with an executor of the application's, see
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
  public convenience init(
    bundle: Bundle, executor: any PackageExecutor, weightBytes: UInt64? = nil,
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    try self.init(bundle, .packages(executor), memoryPressure) { _ in WeightLimits(weightBytes: weightBytes) }
  }

  /// Functions of MLX. `weightBytes` bounds the weights that are in memory at once, those read ahead included; nil: all
  /// stay. Throws as above.
  public convenience init(
    bundle: Bundle, runner: any FunctionRunner, weightBytes: UInt64? = nil,
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    try self.init(bundle, .functions(runner), memoryPressure) { _ in WeightLimits(weightBytes: weightBytes) }
  }

  /// With this build's own executor for the bundle's format. Of the options, the budget for the whole process counts
  /// with the lengths that it must hold, and `residentBytes`.
  ///
  /// Throws `unsupportedBundle` where there is no such executor, and as above.
  public convenience init(
    bundle: Bundle, options: SessionOptions,
    memoryPressure: (any MemoryPressureSource)? = defaultMemoryPressureSource()
  ) throws(EdgeKitError) {
    try self.init(bundle, try .own(bundle), options, memoryPressure)
  }

  /// As above, with an executor of the caller's.
  convenience init(
    _ bundle: Bundle, _ executor: SegmentExecutor, _ options: SessionOptions,
    _ memoryPressure: (any MemoryPressureSource)?
  ) throws(EdgeKitError) {
    var needs: MemoryNeeds?
    do throws(EdgeKitError) {
      try self.init(bundle, executor, memoryPressure) { file throws(EdgeKitError) in
        guard let budget = options.memoryBytes else { return WeightLimits(residentBytes: options.residentBytes) }
        let found = try MemoryNeeds(bundle.manifest, file, positions: options.positions, canvas: options.canvas)
        needs = found
        return WeightLimits(
          weightBytes: budget > found.total ? budget - found.total : 0, residentBytes: options.residentBytes)
      }
    } catch {
      guard case .budgetExceeded(_, let weights) = error, let needs, let budget = options.memoryBytes else {
        throw error
      }
      throw needs.exceeded(budget, weights: weights, bundle.path)
    }
  }

  init(
    _ bundle: Bundle, _ executor: SegmentExecutor, _ memoryPressure: (any MemoryPressureSource)?,
    limits: (FlashFile) throws(EdgeKitError) -> WeightLimits
  ) throws(EdgeKitError) {
    switch (bundle.manifest.programs, executor) {
    case (.packages(let programs), .packages(let executor)):
      let file = try FlashFile(bundle)
      backend = try PackageBackend(
        bundle: bundle, programs: programs, file: file, executor: executor, limits: try limits(file))
      denoiser = SegmentDenoiser(bundle: bundle, file: file, backend: backend)
    case (.mlx(let programs), .functions(let runner)):
      let file = try FlashFile(bundle)
      backend = try MLXBackend(
        bundle: bundle, programs: programs, file: file, runner: runner, limits: try limits(file))
      denoiser = SegmentDenoiser(bundle: bundle, file: file, backend: backend)
    case (let programs, .packages):
      throw .unsupportedBundle("\(bundle.path): was exported for \(programs.format) and has no packages")
    case (let programs, .functions):
      throw .unsupportedBundle("\(bundle.path): was exported for \(programs.format), not for mlx")
    }
    observation = memoryPressure?.observe(backend.relieve)
  }

  var residency: WeightResidency { backend.residency }
}

extension MemoryNeeds {
  /// The error of a budget that cannot hold the process, `weights` bytes of them and the rest.
  fileprivate func exceeded(_ budget: UInt64, weights: UInt64, _ path: String) -> EdgeKitError {
    func megabytes(_ count: UInt64) -> String { "\((count + 999_999) / 1_000_000) MB" }
    let wanted = total + weights
    return .budgetExceeded(
      "\(path): a memory budget of \(megabytes(budget)) is too small; this model and length need at least "
        + "\(megabytes(wanted)) (process \(megabytes(process + Self.allowanceBytes)), activations "
        + "\(megabytes(activations)), prefix \(megabytes(prefix)), unpacked weights \(megabytes(scratch)), reading "
        + "ahead \(megabytes(weights)))",
      sufficientBytes: wanted)
  }
}
