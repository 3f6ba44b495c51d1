// swift-tools-version: 6.0
import Foundation
import PackageDescription

// Swift's package of edgekit, in the root of the repository because Xcode and SwiftPM take packages by the address of one. Its
// sources are in runtime/swift.

/// The XCFramework of a release, by which the package needs no Mac with CMake: docs/release.md says how it gets here. None
/// has been made yet.
let released: (url: String, checksum: String)? = nil

/// The C ABI of the native core: on Apple's systems a static XCFramework, the one that runtime/swift/build-xcframework.sh
/// has made in this checkout, else the release's; elsewhere the shared library, found where the linker is told to look.
func core() -> Target {
  #if canImport(Darwin)
    let made = "runtime/swift/CEdgeKit.xcframework"
    if let released, !FileManager.default.fileExists(atPath: "\(Context.packageDirectory)/\(made)") {
      return .binaryTarget(name: "CEdgeKit", url: released.url, checksum: released.checksum)
    }
    return .binaryTarget(name: "CEdgeKit", path: made)
  #else
    return .systemLibrary(name: "CEdgeKit", path: "runtime/swift/Sources/CEdgeKit")
  #endif
}

let package = Package(
  name: "EdgeKit",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [.library(name: "EdgeKit", targets: ["EdgeKit"])],
  targets: [
    core(),
    .target(
      name: "EdgeKit",
      dependencies: ["CEdgeKit"],
      path: "runtime/swift/Sources/EdgeKit",
      linkerSettings: [.linkedLibrary("c++", .when(platforms: [.iOS, .macOS]))]
    ),
    .target(name: "ExampleArguments", dependencies: ["EdgeKit"], path: "runtime/swift/Examples/Arguments"),
    .executableTarget(
      name: "edgekit-generate", dependencies: ["EdgeKit", "ExampleArguments"], path: "runtime/swift/Examples/Generate"),
    .executableTarget(
      name: "edgekit-bench", dependencies: ["EdgeKit", "ExampleArguments"], path: "runtime/swift/Examples/Bench"),
    .testTarget(
      name: "EdgeKitTests", dependencies: ["EdgeKit", "CEdgeKit"], path: "runtime/swift/Tests/EdgeKitTests"),
  ],
  swiftLanguageModes: [.v6]
)
