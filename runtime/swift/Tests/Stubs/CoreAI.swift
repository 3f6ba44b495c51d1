// What EdgeKit uses of Core AI, as Apple documents it (developer.apple.com/documentation/coreai), without behaviour: to
// compile CoreAIPackages.swift where there is no such framework. Types that are noncopyable there are so here.
import Foundation

public struct SpecializationOptions: Sendable {
  public static let `default` = SpecializationOptions()
}

public struct AIModel: Sendable {
  public init(contentsOf modelURL: URL, options: SpecializationOptions = .default) async throws { throw Stub() }
  public func loadFunction(named functionName: String) throws -> InferenceFunction? { nil }
}

public struct InferenceFunction: Sendable {
  public let descriptor = InferenceFunctionDescriptor()

  public struct MutableViews: ~Copyable {
    public init() {}
  }

  public struct Outputs: ~Copyable {
    public mutating func remove(_ name: String) -> InferenceValue? { nil }
  }

  public func run(
    inputs: [String: NDArray], states: consuming MutableViews = MutableViews(),
    outputViews: consuming MutableViews = MutableViews()
  ) async throws -> Outputs { throw Stub() }
}

public struct InferenceFunctionDescriptor: Sendable {
  public func inputDescriptor(of name: String) -> InferenceValue.Descriptor? { nil }
}

public struct InferenceValue: ~Copyable {
  public enum Descriptor: Sendable {
    case image(ImageDescriptor)
    case ndArray(NDArrayDescriptor)
  }

  public struct ImageDescriptor: Sendable {}

  public var ndArray: NDArray? { nil }
}

public struct NDArrayDescriptor: Sendable {
  public var shape: [Int] { [] }
  public var scalarType: NDArray.ScalarType { .float32 }
  public var interleaveLayout: NDArray.InterleaveLayout? { nil }
}

public struct NDArray {
  public enum ScalarType: Sendable { case bool, int8, uint8, int16, int32, int64, float16, bfloat16, float32 }

  public struct InterleaveLayout: Sendable {}

  public struct View<Element: BitwiseCopyable> {
    public func withUnsafePointer<R, E: Error>(
      _ body: (UnsafePointer<Element>, SpanOfInt, SpanOfInt) throws(E) -> R
    ) throws(E) -> R { fatalError("a stub computes nothing") }
  }

  public struct MutableView<Element: BitwiseCopyable>: ~Copyable {
    public func withUnsafeMutablePointer<R, E: Error>(
      _ body: (UnsafeMutablePointer<Element>, SpanOfInt, SpanOfInt) throws(E) -> R
    ) throws(E) -> R { fatalError("a stub computes nothing") }
  }

  public init(descriptor: NDArrayDescriptor) {}

  public var shape: [Int] { [] }
  public var strides: [Int] { [] }
  public var scalarType: ScalarType { .float32 }
  public var interleaveLayout: InterleaveLayout? { nil }

  public func view<T: BitwiseCopyable>(as type: T.Type = T.self) -> View<T> { View() }
  public mutating func mutableView<T: BitwiseCopyable>(as type: T.Type = T.self) -> MutableView<T> { MutableView() }
}

/// Span<Int>, which compilers before Swift 6.2 do not have.
public struct SpanOfInt {}

private struct Stub: Error {}
