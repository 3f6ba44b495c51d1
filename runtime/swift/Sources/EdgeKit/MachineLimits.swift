import CEdgeKit
import Foundation

/// What this machine can do at most, as reports of `edgekit bench` have it.
enum MachineLimits {
  /// Of each figure of the processor, and of the disk.
  static let processorSeconds = 0.3
  static let diskSeconds = 1.0

  /// Measures processor and memory, and the disk that the file `weights` is on. Nothing else should run meanwhile.
  static func measured(weights: String) async throws -> [String: JSONValue] {
    let thread = ConfinedThread(name: "edgekit limits") { () throws(EdgeKitError) in try found(weights) }
    return try await withCheckedThrowingContinuation { continuation in
      thread.submit { continuation.resume(with: $0) }
    }
  }

  private static func found(_ weights: String) throws(EdgeKitError) -> [String: JSONValue] {
    try NativeLibrary.check()
    var processor = ek_processor_probe()
    processor.struct_size = UInt32(MemoryLayout<ek_processor_probe>.size)
    try EdgeKitError.check(ek_probe_processor(0, processorSeconds, &processor))
    var disk = ek_disk_probe()
    disk.struct_size = UInt32(MemoryLayout<ek_disk_probe>.size)
    // Whoever opens the bundle to run it says what is wrong with a file.
    let isKnown = ek_probe_disk(weights, diskSeconds, &disk) == EK_OK && disk.direct != 0
    return [
      "threads": .integer(Int64(processor.threads)),
      "int8_operations_per_second": .number(processor.int8_operations),
      "int8_instructions": text(processor.int8_instructions),
      "float_operations_per_second": .number(processor.float_operations),
      "float_instructions": text(processor.float_instructions),
      "memory_bytes_per_second": .number(processor.memory_bytes),
      "product_operations_per_second": .number(processor.product_operations),
      "few_row_operations_per_second": .number(processor.few_row_operations),
      "attention_operations_per_second": .number(processor.attention_operations),
      "disk_bytes_per_second": isKnown ? .number(disk.bytes_per_second) : .null,
    ]
  }

  private static func text(_ name: UnsafePointer<CChar>?) -> JSONValue {
    name.map { .string(String(cString: $0)) } ?? .null
  }
}
