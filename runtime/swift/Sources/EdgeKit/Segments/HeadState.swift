import Foundation

/// One tile's part of the vocabulary head, tokens counted from the tile's first: over its tokens max z, argmax, and
/// over all but the argmax sum exp(z - max) and sum z exp(z - max); with noise the best z + noise, its token and z
/// there; with soft sum exp(z - max) E [rows, hidden] over all.
struct TilePart {
  var top: [Float]
  var arg: [Int]
  var sumOthers: [Float]
  var sumZOthers: [Float]
  var score: [Float]?
  var sample: [Int]?
  var sampleZ: [Float]?
  var soft: [Float]?

  /// Whether it has a value of each kind for every row.
  func holds(_ rows: Int, samples: Bool, hidden: Int) -> Bool {
    let counts = [top.count, arg.count, sumOthers.count, sumZOthers.count]
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
  // Sums run in double precision: a vocabulary has many tiles, and the result must not depend on how it is cut. They
  // are over all tokens but the argmax, whose own term is 1: next to it small ones would be lost.
  private var others: [Double]
  private var zOthers: [Double]
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
    // Finite, so that its product with a weight of 0 is 0.
    top = Array(repeating: -Float.greatestFiniteMagnitude, count: rows)
    arg = Array(repeating: 0, count: rows)
    others = Array(repeating: 0, count: rows)
    zOthers = Array(repeating: 0, count: rows)
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
      let old = exp(Double(top[row]) - Double(most))
      let new = exp(Double(part.top[row]) - Double(most))
      // The lower of both argmaxes becomes one of the others.
      let fallen = part.top[row] > top[row] ? old : new
      let below = Double(min(top[row], part.top[row]))
      others[row] = others[row] * old + Double(part.sumOthers[row]) * new + fallen
      zOthers[row] = zOthers[row] * old + Double(part.sumZOthers[row]) * new + below * fallen
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
    let logSum = others.map { log1p($0) }
    let logZ = (0..<rows).map { Double(top[$0]) + logSum[$0] }
    // What remains of log Z - sum z p when max z is taken out of both.
    let entropy = (0..<rows).map { row -> Float in
      let difference = (Double(top[row]) * others[row] - zOthers[row]) / (1 + others[row])
      return Float(max(logSum[row] + difference, 0))
    }
    return HeadOutput(
      argmax: arg,
      others: others.map { Float($0) },
      entropy: entropy,
      logZ: logZ.map { Float($0) },
      sample: samples ? sample : nil,
      sampleProbability: samples ? (0..<rows).map { Float(exp(Double(sampleZ[$0]) - logZ[$0])) } : nil,
      soft: soft.isEmpty
        ? nil : Tensor([rows, hidden], soft.indices.map { Float(Double(soft[$0]) / (1 + others[$0 / hidden])) }),
      topIds: k > 0 ? candidates.map { $0.map(\.id) } : nil,
      topZ: k > 0 ? candidates.map { $0.map(\.z) } : nil,
      logits: logits.isEmpty ? nil : Tensor([rows, vocabulary], logits))
  }
}
