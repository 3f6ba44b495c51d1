import Foundation

/// What runs packages: the system's own runtime, or one that stands in for it.
public protocol PackageExecutor: Sendable {
  /// Opens the package in the folder `url`; `functions` are those that will most likely be called. Also called on
  /// another thread than the calls. Throws `EdgeKitError.engineFailed`.
  func open(
    _ url: URL, _ package: PackagePrograms.Package, functions: [String]
  ) throws(EdgeKitError) -> any OpenPackage
}

/// A package as its system's runtime has it open. Used by one thread at a time.
public protocol OpenPackage: AnyObject, Sendable {
  /// Runs a function on tensors by feature name, of the declared shapes; the types are converted to the declared ones.
  /// Returns all declared outputs. Throws `EdgeKitError.engineFailed`.
  func call(
    _ name: String, _ function: PackagePrograms.Function, inputs: [String: Tensor]
  ) throws(EdgeKitError) -> [String: Tensor]

  /// Gives its memory back.
  func close()
}
