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

/// How many bytes of weights may be in memory.
struct WeightLimits: Equatable {
  /// Of what stays and what is loaded ahead together; nil: all stays.
  var weightBytes: UInt64?
  /// Bounds what stays further.
  var residentBytes: UInt64?
}

/// What stays in memory, by the native core's own rules.
struct ResidencyPlan: Equatable {
  /// As in runtime/memory.py: what loading ahead may take of the budget beyond the two largest units.
  private static let aheadShare: UInt64 = 8
  private static let aheadMost: UInt64 = 256 << 20

  var pinned: Set<String>
  /// What the other units may hold while they are loaded ahead; 0 when all are pinned.
  var aheadBytes: UInt64

  /// Divides `units`, given in execution order. `lookedUpBytes` are those of tables whose rows are read one by one.
  /// Throws `budgetExceeded`.
  init(_ units: [ResidencyUnit], _ limits: WeightLimits, lookedUpBytes: UInt64 = 0) throws(EdgeKitError) {
    // A layer's dense run is held while its experts pass: room for it and two experts.
    let unitsAhead = units.contains { $0.group == "expert" } ? 3 : 2
    let all = units.reduce(0) { $0 + $1.bytes }
    let everything = all + lookedUpBytes
    var budget = limits.weightBytes ?? everything
    var ahead = min(Self.aheadMost, min(budget, everything) / Self.aheadShare)
    if let resident = limits.residentBytes {
      let largest = units.map(\.bytes).sorted(by: >).prefix(unitsAhead).reduce(0, +)
      // A budget that holds every unit would pin every unit, whatever the cap.
      let below = max(resident, all > 0 ? all - 1 : 0)
      let (sum, overflows) = resident.addingReportingOverflow(max(ahead, largest))
      budget = min(budget, overflows ? .max : sum, below)
      ahead = budget > resident ? budget - resident : 0
    }
    try self.init(units, budgetBytes: budget, leastAheadBytes: ahead, unitsAhead: unitsAhead)
  }

  /// `ek_plan_residency`.
  init(
    _ units: [ResidencyUnit], budgetBytes: UInt64, leastAheadBytes: UInt64, unitsAhead: Int
  ) throws(EdgeKitError) {
    var flags = [UInt8](repeating: 0, count: units.count)
    var ahead: UInt64 = 0
    let texts = units.flatMap { [$0.name, $0.group] }.map { Array($0.utf8CString) }
    let status = withPointers(to: texts) { pointers in
      let given = units.indices.map { index in
        ek_unit(name: pointers[2 * index], group: pointers[2 * index + 1], bytes: units[index].bytes)
      }
      return ek_plan_residency(
        given, Int64(given.count), budgetBytes, leastAheadBytes, UInt64(unitsAhead), &flags, &ahead)
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
