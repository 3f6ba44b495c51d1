import Foundation

/// The flash file: a safetensors file whose tensors lie in runs (flashload/format.py has the layout). For engines that
/// bind weights themselves; reads are exact or fail, but unlike the native core's they are not checksummed.
final class FlashFile: Sendable {
  struct Slot: Sendable {
    var name: String
    var dtype: String
    var shape: [Int]
    /// Bytes of the file.
    var range: Range<UInt64>
  }

  struct Run: Sendable {
    var range: Range<UInt64>
    var tensors: [Slot]
  }

  let path: String
  let runs: [String: Run]
  private let tensors: [String: Slot]

  /// Reads the header alone.
  init(path: String) throws(EdgeKitError) {
    struct Entry: Decodable {
      var dtype: String?
      var shape: [Int]?
      var data_offsets: [UInt64]?
      var runs: String?

      enum CodingKeys: String, CodingKey {
        case dtype, shape, data_offsets
        case runs = "edgekit.runs"
      }
    }
    struct RunRow: Decodable {
      var name: String
      var offset: UInt64
      var length: UInt64

      init(from decoder: any Decoder) throws {
        var row = try decoder.unkeyedContainer()
        name = try row.decode(String.self)
        offset = try row.decode(UInt64.self)
        length = try row.decode(UInt64.self)
      }
    }
    self.path = path
    let first = try Self.read(path, 0..<8)
    let length = first.reversed().reduce(UInt64(0)) { $0 << 8 | UInt64($1) }
    guard length > 0, length <= 100_000_000 else {
      throw .malformedFile("\(path): is not a safetensors file; copy or export the bundle again")
    }
    let header = Data(try Self.read(path, 8..<(8 + length)))
    var slots: [String: Slot] = [:]
    var rows: [RunRow] = []
    do {
      for (name, entry) in try JSONDecoder().decode([String: Entry].self, from: header) {
        if name == "__metadata__" {
          rows = try JSONDecoder().decode([RunRow].self, from: Data((entry.runs ?? "").utf8))
        } else if let dtype = entry.dtype, let shape = entry.shape, let ends = entry.data_offsets, ends.count == 2,
          ends[0] <= ends[1], ends[1] < UInt64(1) << 62
        {
          slots[name] = Slot(
            name: name, dtype: dtype, shape: shape, range: (8 + length + ends[0])..<(8 + length + ends[1]))
        }
      }
    } catch {
      throw .malformedFile("\(path): its header is not that of a flash file; copy or export the bundle again")
    }
    tensors = slots
    let ordered = slots.values.filter { !$0.name.hasPrefix("__pad__.") }
      .sorted { $0.range.lowerBound < $1.range.lowerBound }
    var runs: [String: Run] = [:]
    for row in rows where row.offset <= UInt64.max - row.length {
      let range = row.offset..<(row.offset + row.length)
      let own = ordered.filter { range.lowerBound <= $0.range.lowerBound && $0.range.upperBound <= range.upperBound }
      runs[row.name] = Run(range: range, tensors: own)
    }
    self.runs = runs
  }

  /// The tensors of a run by short name (without the run's own).
  func load(_ name: String) throws(EdgeKitError) -> [String: Tensor] {
    guard let run = runs[name] else { throw missing(name) }
    let bytes = try Self.read(path, run.range)
    var loaded: [String: Tensor] = [:]
    for slot in run.tensors {
      let from = Int(slot.range.lowerBound - run.range.lowerBound)
      let part = Array(bytes[from..<(from + slot.range.count)])
      loaded[String(slot.name.dropFirst(name.count + 1))] = Tensor(slot.shape, dtype: slot.dtype, bytes: part)
    }
    return loaded
  }

  /// Rows of a tensor, one after the other.
  func rows(_ name: String, _ rows: [Int]) throws(EdgeKitError) -> Tensor {
    guard let slot = tensors[name], let count = slot.shape.first, count > 0 else { throw missing(name) }
    let size = UInt64(slot.range.count / count)
    var bytes: [UInt8] = []
    for row in rows {
      guard (0..<count).contains(row) else {
        throw .invalidArgument("\(path): \(name) has \(count) rows, row \(row) was asked for")
      }
      let start = slot.range.lowerBound + UInt64(row) * size
      bytes += try Self.read(path, start..<(start + size))
    }
    return Tensor([rows.count] + slot.shape.dropFirst(), dtype: slot.dtype, bytes: bytes)
  }

  func has(_ name: String) -> Bool { tensors[name] != nil }

  private func missing(_ name: String) -> EdgeKitError {
    .malformedFile("\(path): has no '\(name)', which the manifest names; export the bundle again")
  }

  /// Exactly these bytes.
  private static func read(_ path: String, _ range: Range<UInt64>) throws(EdgeKitError) -> [UInt8] {
    guard let handle = FileHandle(forReadingAtPath: path) else {
      throw .openFailed("\(path): cannot be opened; copy or export the bundle again")
    }
    defer { try? handle.close() }
    do {
      try handle.seek(toOffset: range.lowerBound)
      var bytes: [UInt8] = []
      bytes.reserveCapacity(range.count)
      while bytes.count < range.count {
        guard let part = try handle.read(upToCount: range.count - bytes.count), !part.isEmpty else { break }
        bytes += part
      }
      guard bytes.count == range.count else {
        throw EdgeKitError.truncatedFile(
          "\(path): ends \(range.count - bytes.count) bytes before byte \(range.upperBound); copy it again")
      }
      return bytes
    } catch let error as EdgeKitError {
      throw error
    } catch {
      throw .readFailed("\(path): cannot be read (\(error.localizedDescription))")
    }
  }
}

extension FlashFile {
  /// Rows of a vocabulary table's tile in single precision, [rows, hidden]: from bfloat16, 8-bit codes with a scale
  /// each, or four of them to a word with scales in groups (MLX's, whose biases follow from the scales).
  func tableRows(_ run: String, _ rows: [Int], hidden: Int) throws(EdgeKitError) -> [Float] {
    if has("\(run).codes") {
      let scales = try self.rows("\(run).scales", rows).floats
      guard case .stored(_, let codes) = try self.rows("\(run).codes", rows).values else { return [] }
      return codes.indices.map { (Float(codes[$0]) - 128) * scales[$0 / hidden] }
    }
    let weight = try self.rows("\(run).weight", rows)
    guard case .stored("U32", let codes) = weight.values else { return weight.floats }
    let scales = try self.rows("\(run).scales", rows).floats
    let group = codes.count / max(scales.count, 1)
    return codes.indices.map { (Float(codes[$0]) - 128) * scales[$0 / group] }
  }
}
