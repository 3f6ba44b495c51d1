/// sum over j of weight[t, j] * expert[index[t, j]](x[t]) [T, H], by experts in any order: what they say of a row is
/// added in the order of their number.
struct Mixture {
  private let rows: Int
  private let hidden: Int
  /// Experts of a row.
  private let k: Int
  private let x: [Float]
  private let chosen: [Int]
  private let weight: [Float]
  /// [T, k, H]
  private var parts: [Float]

  /// `program` is for messages. Throws `engineFailed` for arrays that do not fit each other, and experts that the layer
  /// does not have.
  init(_ program: String, x: Tensor, index: Tensor, weight: Tensor, experts: Int) throws(EdgeKitError) {
    let chosen = index.integers
    guard x.shape.count == 2, index.shape.count == 2, index.shape[0] == x.shape[0], weight.count == index.count,
      chosen.allSatisfy({ (0..<experts).contains($0) })
    else {
      throw .engineFailed(
        "program \(program) chooses experts \(index.shape) of \(experts) for rows \(x.shape); export the bundle again")
    }
    (rows, hidden, k) = (x.shape[0], x.shape[1], index.shape[1])
    (self.x, self.chosen, self.weight) = (x.floats, chosen, weight.floats)
    parts = Array(repeating: 0, count: rows * k * hidden)
  }

  /// Rows by expert.
  func counts() -> [Int: Int] { Dictionary(chosen.map { ($0, 1) }, uniquingKeysWith: +) }

  /// Runs an expert on its rows [R, H].
  mutating func add(_ number: Int, _ run: (Tensor) throws -> Tensor) throws {
    let places = chosen.indices.filter { chosen[$0] == number }
    if places.isEmpty { return }
    var own: [Float] = []
    own.reserveCapacity(places.count * hidden)
    for place in places { own += x[(place / k * hidden)..<(place / k * hidden + hidden)] }
    let out = try run(Tensor([places.count, hidden], own))
    try out.check([places.count, hidden])
    let y = out.floats
    for (row, place) in places.enumerated() {
      for column in 0..<hidden { parts[place * hidden + column] = y[row * hidden + column] * weight[place] }
    }
  }

  func sum() -> Tensor {
    var total = [Float](repeating: 0, count: rows * hidden)
    for row in 0..<rows {
      let own = Array(chosen[(row * k)..<((row + 1) * k)])
      let order = (0..<k).sorted { own[$0] != own[$1] ? own[$0] < own[$1] : $0 < $1 }
      for slot in order {
        let at = (row * k + slot) * hidden
        for column in 0..<hidden { total[row * hidden + column] += parts[at + column] }
      }
    }
    return Tensor([rows, hidden], total)
  }
}
