import CEdgeKit

/// Something that stays in memory, or is loaded anew in every step, as a whole: a package, or a run of weights.
struct ResidencyUnit: Equatable {
  /// As in runtime/memory.py: loads of units up to this size are too short to hide behind computation.
  static let smallBytes: UInt64 = 1 << 20

  var name: String
  var bytes: UInt64
  /// Units of equal group and size are spread evenly over a step.
  var group: String

  init(_ name: String, bytes: UInt64, group: String) {
    self.name = name
    self.bytes = bytes
    self.group = bytes <= Self.smallBytes && group != "expert" ? "dense small" : group
  }
}

/// Bytes of weights that stay in memory, that others may hold while they are loaded ahead, and that a step loads.
struct WeightResidency {
  var pinned: UInt64 = 0
  var ahead: UInt64 = 0
  var streamed: UInt64 = 0
}

/// What stays in memory, by the native core's own rules.
struct ResidencyPlan: Equatable {
  var pinned: Set<String>
  /// What the other units may hold while they are loaded ahead; 0 when all are pinned.
  var aheadBytes: UInt64

  /// Divides `units`, given in execution order. `weightBytes` bounds pins and what is loaded ahead together; nil: all
  /// stay in memory. Throws `budgetExceeded`.
  init(_ units: [ResidencyUnit], weightBytes: UInt64?) throws(EdgeKitError) {
    guard let weightBytes else {
      pinned = Set(units.map(\.name))
      aheadBytes = 0
      return
    }
    // A layer's dense run is held while its experts pass: room for it and two experts.
    let unitsAhead: UInt64 = units.contains { $0.group == "expert" } ? 3 : 2
    var flags = [UInt8](repeating: 0, count: units.count)
    var ahead: UInt64 = 0
    let texts = units.flatMap { [$0.name, $0.group] }.map { Array($0.utf8CString) }
    let status = withPointers(to: texts) { pointers in
      let given = units.indices.map { index in
        ek_unit(name: pointers[2 * index], group: pointers[2 * index + 1], bytes: units[index].bytes)
      }
      return ek_plan_residency(given, Int64(given.count), weightBytes, 0, unitsAhead, &flags, &ahead)
    }
    try EdgeKitError.check(status)
    pinned = Set(units.indices.filter { flags[$0] != 0 }.map { units[$0].name })
    aheadBytes = ahead
  }
}

/// Pointers to texts that end with a NUL, valid inside `body`.
private func withPointers<Result>(
  to texts: [[CChar]], _ body: ([UnsafePointer<CChar>]) -> Result
) -> Result {
  let all = texts.flatMap { $0 }
  return all.withUnsafeBufferPointer { buffer in
    guard let base = buffer.baseAddress else { return body([]) }
    var pointers: [UnsafePointer<CChar>] = []
    var offset = 0
    for text in texts {
      pointers.append(base + offset)
      offset += text.count
    }
    return body(pointers)
  }
}
