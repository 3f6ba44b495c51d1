/// What computes the programs of a bundle.
enum SegmentExecutor {
  /// The native core.
  case native
  case packages(any PackageExecutor)
  case functions(any FunctionRunner)

  /// Formats of bundles that this build executes on this system.
  static let formats: Set<String> = {
    var found: Set<String> = ["native"]
    #if canImport(CoreML)
      found.insert("coreml")
    #endif
    #if canImport(CoreAI) && !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
      if #available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *) { found.insert("coreai") }
    #endif
    #if canImport(Cmlx)
      found.insert("mlx")
    #endif
    return found
  }()

  /// This build's own for the bundle's format. Throws `unsupportedBundle` where it has none.
  static func own(_ bundle: Bundle) throws(EdgeKitError) -> SegmentExecutor {
    let format = bundle.manifest.programs.format
    if format == "native" { return .native }
    #if canImport(CoreML)
      if format == "coreml" { return .packages(CoreMLPackages(bundle: bundle)) }
    #endif
    #if canImport(CoreAI) && !((os(macOS) || targetEnvironment(macCatalyst)) && arch(x86_64))
      if #available(iOS 27, macOS 27, tvOS 27, visionOS 27, watchOS 27, *), format == "coreai" {
        return .packages(CoreAIPackages())
      }
    #endif
    #if canImport(Cmlx)
      if format == "mlx" { return .functions(try MLXFunctions(bundle: bundle)) }
    #endif
    throw .unsupportedBundle("\(bundle.path): \(missing(format)); this build runs \(listed(formats))")
  }

  /// What it plugs into the core for a bundle; nil for the core's own. Throws `unsupportedBundle` for another format.
  func table(_ bundle: Bundle) throws(EdgeKitError) -> (any CoreTable)? {
    switch self {
    case .native: return nil
    case .packages(let executor): return PackageTable(bundle.manifest.programs.format, executor)
    case .functions(let runner): return EngineTable(try Self.engine(bundle, runner))
    }
  }

  /// Throws `unsupportedBundle` for another format than MLX's.
  static func engine(_ bundle: Bundle, _ runner: any FunctionRunner) throws(EdgeKitError) -> MLXEngine {
    guard case .mlx(let programs) = bundle.manifest.programs else {
      throw .unsupportedBundle("\(bundle.path): was exported for \(bundle.manifest.programs.format), not for mlx")
    }
    return try MLXEngine(bundle, programs, runner)
  }

  /// Why a format is not among those of this build.
  static func missing(_ format: String) -> String {
    switch format {
    case "coreml": "is for Core ML, which runs on iOS and macOS"
    case "coreai": "is for Core AI, which runs on iOS 27 and macOS 27 in applications built with Xcode 27"
    case "mlx": "is for MLX, which takes a build with the module Cmlx"
    default: "was exported for \(format), which the Swift package does not run"
    }
  }

  static func listed(_ formats: Set<String>) -> String { formats.sorted().joined(separator: ", ") }
}
