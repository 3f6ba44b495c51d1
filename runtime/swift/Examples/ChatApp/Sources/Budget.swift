/// How much memory the process may take: weights that do not fit stream from the bundle.
enum Budget: UInt64, CaseIterable, Identifiable {
  case none = 0
  case gb1 = 1_000_000_000
  case gb2 = 2_000_000_000
  case gb4 = 4_000_000_000
  case gb8 = 8_000_000_000

  var id: UInt64 { rawValue }

  /// nil: no limit.
  var bytes: UInt64? { self == .none ? nil : rawValue }

  var title: String { self == .none ? "No limit" : "\(rawValue / 1_000_000_000) GB" }
}
