import Foundation

/// One tile's part of the vocabulary head, tokens counted from the tile's first: over its tokens max z, argmax,
/// sum exp(z - max), sum z exp(z - max); with noise the best z + noise, its token and z there; with soft
/// sum exp(z - max) E [rows, hidden].
struct TilePart {
  var top: [Float]
  var arg: [Int]
  var sumExp: [Float]
  var sumZExp: [Float]
  var score: [Float]?
  var sample: [Int]?
  var sampleZ: [Float]?
  var soft: [Float]?

  /// Whether it has a value of each kind for every row.
  func holds(_ rows: Int, samples: Bool, hidden: Int) -> Bool {
    let counts = [top.count, arg.count, sumExp.count, sumZExp.count]
    let sampled = samples ? [score?.count ?? 0, sample?.count ?? 0, sampleZ?.count ?? 0] : []
    return (counts + sampled).allSatisfy { $0 == rows } && (hidden == 0 || soft?.count == rows * hidden)
  }
}

/// Joins the parts of tiles, in ascending order of tokens, by the online softmax (arXiv 1805.02867).
struct HeadState {
  private let rows: Int
  private let hidden: Int
  private let vocabulary: Int
  private let samples: Bool
  private let k: Int
  private var top: [Float]
  private var arg: [Int]
  // Sums run in double precision: a vocabulary has many tiles, and the result must not depend on how it is cut.
  private var sum: [Double]
  private var sumZ: [Double]
  private var score: [Float]
  private var sample: [Int]
  private var sampleZ: [Float]
  private var soft: [Float]
  private var candidates: [[(id: Int, z: Float)]]
  private var logits: [Float]

  init(rows: Int, hidden: Int, vocabulary: Int, request: HeadRequest) {
    self.rows = rows
    self.hidden = hidden
    self.vocabulary = vocabulary
    samples = request.gumbel != nil
    k = min(request.topK, vocabulary)
    top = Array(repeating: -.infinity, count: rows)
    arg = Array(repeating: 0, count: rows)
    sum = Array(repeating: 0, count: rows)
    sumZ = Array(repeating: 0, count: rows)
    score = Array(repeating: -.infinity, count: rows)
    sample = Array(repeating: 0, count: rows)
    sampleZ = Array(repeating: 0, count: rows)
    soft = Array(repeating: 0, count: request.soft ? rows * hidden : 0)
    candidates = Array(repeating: [], count: rows)
    logits = Array(repeating: 0, count: request.logits ? rows * vocabulary : 0)
  }

  /// Join the tile whose first token is `start`.
  mutating func add(_ start: Int, _ part: TilePart) {
    for row in 0..<rows {
      let most = max(top[row], part.top[row])
      let old = exp(Double(top[row] - most))
      let new = exp(Double(part.top[row] - most))
      sum[row] = sum[row] * old + Double(part.sumExp[row]) * new
      sumZ[row] = sumZ[row] * old + Double(part.sumZExp[row]) * new
      if !soft.isEmpty, let own = part.soft {
        for column in (row * hidden)..<((row + 1) * hidden) {
          soft[column] = soft[column] * Float(old) + own[column] * Float(new)
        }
      }
      if part.top[row] > top[row] { arg[row] = part.arg[row] + start }
      top[row] = most
      if let scores = part.score, let tokens = part.sample, let z = part.sampleZ, scores[row] > score[row] {
        score[row] = scores[row]
        sample[row] = tokens[row] + start
        sampleZ[row] = z[row]
      }
    }
  }

  /// Join z [rows, width] itself, for requests that want candidates or all of it.
  mutating func add(_ start: Int, logits z: [Float]) {
    guard rows > 0 else { return }
    let width = z.count / rows
    for row in 0..<rows {
      let own = z[(row * width)..<((row + 1) * width)]
      if !logits.isEmpty {
        let at = row * vocabulary + start
        logits.replaceSubrange(at..<(at + width), with: own)
      }
      if k > 0 {
        // Equal scores go to the lower token, which came first.
        let bound = candidates[row].count == k ? candidates[row][k - 1].z : -.infinity
        let full = candidates[row].count == k
        var joined = candidates[row]
        for (column, value) in own.enumerated() where !full || value > bound {
          joined.append((start + column, value))
        }
        joined.sort { $0.z != $1.z ? $0.z > $1.z : $0.id < $1.id }
        candidates[row] = Array(joined.prefix(k))
      }
    }
  }

  /// Statistics over the whole vocabulary.
  func result() -> HeadOutput {
    let logSum = sum.map { log($0) }
    let logZ = (0..<rows).map { Double(top[$0]) + logSum[$0] }
    return HeadOutput(
      argmax: arg,
      argmaxProbability: logSum.map { Float(exp(-$0)) },
      entropy: (0..<rows).map { Float(max(logZ[$0] - sumZ[$0] / sum[$0], 0)) },
      logZ: logZ.map { Float($0) },
      sample: samples ? sample : nil,
      sampleProbability: samples ? (0..<rows).map { Float(exp(Double(sampleZ[$0]) - logZ[$0])) } : nil,
      soft: soft.isEmpty
        ? nil : Tensor([rows, hidden], soft.indices.map { Float(Double(soft[$0]) / sum[$0 / hidden]) }),
      topIds: k > 0 ? candidates.map { $0.map(\.id) } : nil,
      topZ: k > 0 ? candidates.map { $0.map(\.z) } : nil,
      logits: logits.isEmpty ? nil : Tensor([rows, vocabulary], logits))
  }
}
