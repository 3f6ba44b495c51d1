// swift-tools-version: 6.0
import PackageDescription

// The C ABI of the native core: a static XCFramework, which build-xcframework.sh makes, on Apple's systems; the shared
// library elsewhere, found where the linker is told to look.
#if canImport(Darwin)
  let core = Target.binaryTarget(name: "CEdgeKit", path: "CEdgeKit.xcframework")
#else
  let core = Target.systemLibrary(name: "CEdgeKit")
#endif

let package = Package(
  name: "EdgeKit",
  platforms: [.iOS(.v18), .macOS(.v15)],
  products: [.library(name: "EdgeKit", targets: ["EdgeKit"])],
  targets: [
    core,
    .target(
      name: "EdgeKit",
      dependencies: ["CEdgeKit"],
      linkerSettings: [.linkedLibrary("c++", .when(platforms: [.iOS, .macOS]))]
    ),
    .target(name: "ExampleArguments", dependencies: ["EdgeKit"], path: "Examples/Arguments"),
    .executableTarget(
      name: "edgekit-generate", dependencies: ["EdgeKit", "ExampleArguments"], path: "Examples/Generate"),
    .executableTarget(name: "edgekit-bench", dependencies: ["EdgeKit", "ExampleArguments"], path: "Examples/Bench"),
    .testTarget(name: "EdgeKitTests", dependencies: ["EdgeKit", "CEdgeKit"]),
  ],
  swiftLanguageModes: [.v6]
)
