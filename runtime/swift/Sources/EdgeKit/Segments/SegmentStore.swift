import Synchronization

/// A kind of pass over the model, for what is loaded ahead.
enum Pass: Hashable, Sendable { case denoise, prefill, head }

/// Hands out opened units by name: some stay open, the others are opened ahead of their use and closed behind it.
/// For one thread at a time, but for `relieve`.
final class SegmentStore<Opened: Sendable> {
  private let units: [ResidencyUnit]
  private let passes: [Pass: [String]]
  private let open: @Sendable (String) throws(EdgeKitError) -> Opened
  private let close: @Sendable (Opened) -> Void
  private var plan: ResidencyPlan
  private var pinned: [String: Opened] = [:]
  private var ahead: OpenAhead<Opened>?
  /// What is left of the pass that runs, pinned units included.
  private var remaining: [String] = []
  /// The pass that was scheduled behind it.
  private var expected: Pass?
  /// Not relieved yet.
  private let pressure = MemoryPressureFlag()

  /// `units` in execution order; `passes`: for each kind of pass, the units it uses, in order. `open` is also called on
  /// the thread that opens ahead. Throws `budgetExceeded`, and what opening the units that stay open throws.
  init(
    units: [ResidencyUnit], passes: [Pass: [String]], limits: WeightLimits, lookedUpBytes: UInt64,
    open: @escaping @Sendable (String) throws(EdgeKitError) -> Opened, close: @escaping @Sendable (Opened) -> Void
  ) throws(EdgeKitError) {
    self.units = units
    self.passes = passes
    self.open = open
    self.close = close
    plan = try ResidencyPlan(units, limits, lookedUpBytes: lookedUpBytes)
    makeAhead()
    do throws(EdgeKitError) {
      for unit in units where plan.pinned.contains(unit.name) { pinned[unit.name] = try open(unit.name) }
    } catch {
      for opened in pinned.values { close(opened) }
      throw error
    }
  }

  deinit { for opened in pinned.values { close(opened) } }

  func isPinned(_ name: String) -> Bool { pinned[name] != nil }

  var residency: WeightResidency {
    var found = WeightResidency(ahead: plan.aheadBytes)
    for unit in units {
      if isPinned(unit.name) { found.pinned += unit.bytes } else { found.streamed += unit.bytes }
    }
    return found
  }

  /// Starts a pass; `then` is the kind that most likely follows, for loading ahead.
  func begin(_ pass: Pass, then: Pass?) {
    dropPins()
    let names = passes[pass] ?? []
    remaining = names
    if expected != pass {
      ahead?.cancel()
      ahead?.schedule(streamed(names))
    }
    expected = then
    if let then { ahead?.schedule(streamed(passes[then] ?? [])) }
  }

  /// Tells that no pass follows soon: stops loading ahead.
  func idle() {
    ahead?.cancel()
    expected = nil
    remaining = []
  }

  /// Runs `body` on the opened unit. Units must be used in the order of the pass.
  func use<Value>(_ name: String, _ body: (Opened) throws -> Value) throws -> Value {
    try use(anyOf: [name]) { try body($1) }
  }

  /// Runs `body` on one of the units, which are in the order of the pass: one that stays open where there is such, which
  /// leaves the others time to be loaded; else the first.
  func use<Value>(anyOf names: [String], _ body: (String, Opened) throws -> Value) throws -> Value {
    dropPins()
    guard let name = names.first(where: isPinned) ?? names.first else {
      throw EdgeKitError.internalError("no segment was asked for; please report it")
    }
    if let at = remaining.firstIndex(of: name) { remaining.remove(at: at) }
    if let opened = pinned[name] { return try body(name, opened) }
    guard let ahead else { throw EdgeKitError.internalError("segment \(name) is neither pinned nor scheduled") }
    let opened = try ahead.take(name)
    defer { ahead.release(name, opened) }
    return try body(name, opened)
  }

  /// Has pins closed, from any thread: half of their bytes after a warning, all when memory is critical, before the next
  /// unit is used. The units are then loaded in every step.
  var relieve: @Sendable (MemoryPressure) -> Void {
    let pressure = pressure
    return { pressure.raise($0) }
  }

  private func dropPins() {
    let level = pressure.take()
    guard level > .normal, !pinned.isEmpty else { return }
    let held = units.filter { pinned[$0.name] != nil }
    var surplus = held.reduce(0) { $0 + $1.bytes }
    if level == .warning { surplus /= 2 }
    var dropped: Set<String> = []
    for unit in held.reversed() where surplus > 0 {
      dropped.insert(unit.name)
      surplus -= min(surplus, unit.bytes)
    }
    for name in dropped { pinned.removeValue(forKey: name).map(close) }
    plan.pinned.subtract(dropped)
    // At least two of the units that are loaded from now on.
    let sizes = units.filter { !plan.pinned.contains($0.name) }.map(\.bytes).sorted(by: >)
    plan.aheadBytes = max(plan.aheadBytes, sizes.prefix(2).reduce(0, +))
    ahead?.cancel()
    makeAhead()
    ahead?.schedule(streamed(remaining))
    if let expected { ahead?.schedule(streamed(passes[expected] ?? [])) }
  }

  private func streamed(_ names: [String]) -> [String] { names.filter { !plan.pinned.contains($0) } }

  private func makeAhead() {
    guard plan.aheadBytes > 0 else { return }
    let sizes = Dictionary(uniqueKeysWithValues: units.map { ($0.name, $0.bytes) })
    ahead = OpenAhead(sizes: sizes, budgetBytes: plan.aheadBytes, open: open, close: close)
  }
}

/// The highest pressure felt since it was last asked for.
final class MemoryPressureFlag: Sendable {
  private let level = Mutex(MemoryPressure.normal)

  func raise(_ pressure: MemoryPressure) { level.withLock { $0 = max($0, pressure) } }

  func take() -> MemoryPressure {
    level.withLock { level in
      defer { level = .normal }
      return level
    }
  }
}
