import Foundation

/// What runs packages: the system's own runtime, or one that stands in for it. The native core chooses packages and
/// functions, and pads and cuts their arrays.
public protocol PackageExecutor: Sendable {
  /// Opens the package in the folder `url`; `functions` are those that will most likely be called. Called on another
  /// thread than the functions. Throws `EdgeKitError.engineFailed`.
  func open(_ url: URL, functions: [String]) throws(EdgeKitError) -> any OpenPackage
}

/// A package as its system's runtime has it open. Used by one thread at a time.
public protocol OpenPackage: AnyObject, Sendable {
  /// Runs a function, which fills all `outputs`. Throws `EdgeKitError.engineFailed`.
  func call(_ function: String, inputs: [PackageArray], outputs: [PackageArray]) throws(EdgeKitError)

  /// Gives its memory back.
  func close()
}
