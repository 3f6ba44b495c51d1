import CEdgeKit

/// The flash file of a bundle, for engines that bind weights themselves: the native core reads and verifies its runs.
final class FlashFile: Sendable {
  struct Slot: Sendable {
    /// In its run, without the run's own name.
    var name: String
    var dtype: String
    var shape: [Int]
    /// Bytes of the run.
    var range: Range<Int>
  }

  struct Run: Sendable {
    /// Padding included.
    var bytes: Int
    var tensors: [Slot]
  }

  let path: String
  // Different threads may use it at the same time.
  private nonisolated(unsafe) let handle: OpaquePointer

  /// Reads the header alone. Throws `openFailed`, `readFailed`, `truncatedFile`, `malformedFile`, `unsupportedVersion`.
  init(path: String) throws(EdgeKitError) {
    try NativeLibrary.check()
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_flash_open(path, &opened))
    guard let opened else { throw .internalError("ek_flash_open gave no file") }
    self.path = path
    handle = opened
  }

  /// That of a bundle, whose header is compared with the manifest. Throws `checksumMismatch` too.
  init(_ bundle: Bundle) throws(EdgeKitError) {
    path = bundle.url(bundle.manifest.weights.file).path
    handle = try bundle.opened().openWeights()
  }

  deinit { ek_flash_close(handle) }

  /// Throws `malformedFile` for a run that is not there, or empty.
  func run(_ name: String) throws(EdgeKitError) -> Run {
    var bytes: UInt64 = 0
    var count: Int64 = 0
    guard ek_flash_find_run(handle, name, &bytes, &count) == EK_OK, bytes > 0, bytes <= Int.max else {
      throw missing(name)
    }
    var tensors: [Slot] = []
    for index in 0..<count {
      var found = ek_flash_tensor()
      found.struct_size = UInt32(MemoryLayout<ek_flash_tensor>.size)
      try EdgeKitError.check(ek_flash_get_tensor(handle, name, index, &found))
      tensors.append(Slot(found))
    }
    return Run(bytes: Int(bytes), tensors: tensors)
  }

  /// The tensors of a run by short name. Throws `checksumMismatch` for bytes that are not those that were exported, and
  /// the other errors of reading.
  func load(_ name: String) throws(EdgeKitError) -> [String: Tensor] {
    let run = try run(name)
    let memory = PageAlignedMemory(count: run.bytes)
    try EdgeKitError.check(ek_flash_read_run(handle, name, memory.buffer.baseAddress, UInt64(run.bytes)))
    return Dictionary(
      run.tensors.map { ($0.name, Tensor($0.shape, dtype: $0.dtype, bytes: StoredBytes(memory, $0.range))) }
    ) { $1 }
  }

  /// Rows of a tensor of a run, one after the other; they are not verified.
  func rows(_ name: String, _ slot: Slot, _ rows: [Int]) throws(EdgeKitError) -> Tensor {
    let count = slot.shape.first ?? 0
    let size = count > 0 ? slot.range.count / count : 0
    let memory = PageAlignedMemory(count: rows.count * size)
    for (place, row) in rows.enumerated() {
      guard (0..<count).contains(row) else {
        throw .malformedFile(
          "\(path): \(slot.name) of run \(name) has \(count) rows, row \(row) was asked for; export the bundle again")
      }
      let out = memory.buffer.baseAddress.map { $0 + place * size }
      try EdgeKitError.check(
        ek_flash_read_part(handle, name, UInt64(slot.range.lowerBound + row * size), UInt64(size), out))
    }
    return Tensor(
      [rows.count] + slot.shape.dropFirst(), dtype: slot.dtype, bytes: StoredBytes(memory, 0..<(rows.count * size)))
  }

  /// Of runs together.
  func bytes(of names: [String]) throws(EdgeKitError) -> UInt64 {
    var sum: UInt64 = 0
    for name in names { sum += UInt64(try run(name).bytes) }
    return sum
  }

  fileprivate func missing(_ name: String) -> EdgeKitError {
    .malformedFile("\(path): has no '\(name)', which the manifest names; export the bundle again")
  }
}

extension FlashFile.Slot {
  /// The native core has checked that the tensor lies in its run and has as many bytes as its shape says.
  fileprivate init(_ found: ek_flash_tensor) {
    name = found.name.map { String(cString: $0) } ?? ""
    dtype = found.dtype.map { String(cString: $0) } ?? ""
    shape = UnsafeBufferPointer(start: found.shape, count: Int(found.rank)).map { Int($0) }
    range = Int(found.offset)..<Int(found.offset + found.bytes)
  }
}

extension FlashFile {
  /// Rows of a vocabulary table's tile in single precision, [rows, hidden]: from bfloat16, 8-bit codes with a scale
  /// each, or four of them to a word with scales in groups (MLX's, whose biases follow from the scales).
  func tableRows(_ name: String, _ rows: [Int], hidden: Int) throws(EdgeKitError) -> [Float] {
    let slots = Dictionary(try run(name).tensors.map { ($0.name, $0) }) { $1 }
    guard let slot = slots["codes"] ?? slots["weight"] else { throw missing("\(name).weight") }
    let weight = try self.rows(name, slot, rows)
    let codes: [UInt8]
    switch weight.values {
    case .stored("BF16", _), .stored("F16", _), .stored("F32", _):
      guard weight.count == rows.count * hidden else { throw misshapen(name) }
      return weight.floats
    case .stored(_, let bytes): codes = bytes.withUnsafeBytes { Array($0) }
    default: throw misshapen(name)
    }
    guard let scaleSlot = slots["scales"] else { throw missing("\(name).scales") }
    let scales = try self.rows(name, scaleSlot, rows).floats
    // A scale each row, or each group of a row.
    guard codes.count == rows.count * hidden, !scales.isEmpty || codes.isEmpty,
      codes.isEmpty || codes.count % scales.count == 0, scales.count % max(rows.count, 1) == 0
    else { throw misshapen(name) }
    let group = codes.count / max(scales.count, 1)
    return codes.indices.map { (Float(codes[$0]) - 128) * scales[$0 / group] }
  }

  private func misshapen(_ name: String) -> EdgeKitError {
    .malformedFile("\(path): the table of run \(name) is not of the model's width; export the bundle again")
  }
}
