import XCTest

@testable import EdgeKit

/// Arrays, masks and the joined head, beside the plainest way to compute them.
final class ArrayTests: XCTestCase {
  func testHalvesGoThereAndBack() {
    for bits in UInt16.min...UInt16.max {
      let value = float16(bits)
      if value.isNaN {
        XCTAssertTrue(float16(float16Bits(value)).isNaN)
      } else {
        XCTAssertEqual(float16Bits(value), bits)
      }
    }
    #if arch(arm64) || os(Linux)
      var generator = SystemRandomNumberGenerator()
      for _ in 0..<20000 {
        let value = Float(bitPattern: generator.next())
        if !value.isNaN { XCTAssertEqual(float16Bits(value), Float16(value).bitPattern, "\(value)") }
      }
    #endif
  }

  func testStoredValuesAreDecoded() {
    let bytes: [UInt8] = [0, 0, 0x80, 0x3f, 0, 0, 0, 0xc0]
    XCTAssertEqual(Tensor([2], dtype: "F32", bytes: bytes).floats, [1, -2])
    XCTAssertEqual(Tensor([2], dtype: "BF16", bytes: [0x80, 0x3f, 0, 0xc0]).floats, [1, -2])
    XCTAssertEqual(Tensor([2], dtype: "F16", bytes: [0, 0x3c, 0, 0xc0]).floats, [1, -2])
    XCTAssertEqual(Tensor([3], [0.4, -1.6, .nan]).integers, [0, -2, 0])
  }

  func testPaddingPutsEveryElementInItsPlace() throws {
    for (shape, target) in [([1, 2, 3], [1, 4, 3]), ([2, 3, 2, 4], [2, 3, 5, 4]), ([3], [5]), ([1, 2, 0, 4], [1, 2, 3, 4])] {
      let values = (0..<shape.reduce(1, *)).map { Float($0 + 1) }
      let feature = PackagePrograms.Feature(name: "x", dtype: "float32", shape: target, role: "x")
      let out = try padded(Tensor(shape, values), to: feature)
      XCTAssertEqual(out.shape, target)
      XCTAssertEqual(out.floats.reduce(0, +), values.reduce(0, +))
      let strides = target.indices.map { target[($0 + 1)...].reduce(1, *) }
      for (index, value) in values.enumerated() {
        XCTAssertEqual(out.floats[stridedOffset(index, shape: shape, strides: strides)], value)
      }
    }
    let small = PackagePrograms.Feature(name: "x", dtype: "float32", shape: [1, 2], role: "x")
    XCTAssertThrowsError(try padded(Tensor(zeros: [1, 3]), to: small))
    XCTAssertThrowsError(try padded(Tensor(zeros: [2]), to: small))
  }

  func testMasksHidePaddingWithinFloat16() {
    var mask = Tensor(zeros: [2, 5]).floats
    mask[4] = maskedScore
    let low = packageMaskedScore
    let found = paddedMask(Tensor([2, 5], mask), kept: 3, prefix: 4, length: 3)
    XCTAssertEqual(found.shape, [3, 7])
    XCTAssertEqual(
      found.floats, [0, 0, 0, low, 0, low, low, 0, 0, 0, low, 0, 0, low, 0, 0, 0, low, 0, 0, low])
    XCTAssertEqual(float16(float16Bits(low)), low)
  }

  func testAPrefillSeesWhatLiesBeforeAndWithinTheWindow() {
    let mask = attentionMask(first: 5, length: 3, kept: 2, window: 3, phase: .prefill).floats
    let hidden = mask.map { $0 < 0 ? 1 : 0 }
    // Keys at 3, 4, 5, 6, 7 for positions 5, 6, 7.
    XCTAssertEqual(hidden, [0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1, 1, 0, 0, 0])
    XCTAssertEqual(Set(attentionMask(first: 5, length: 3, kept: 2, window: 3, phase: .denoise).floats), [0])
  }

  func testAWindowKeepsItsLastPositions() {
    func layer(_ window: Int?) -> Manifest.Layer {
      Manifest.Layer(
        program: "", run: "", experts: [], kvHeads: 2, headDim: 3, rope: "", window: window, package: nil, slot: nil)
    }
    var prefix = PrefixCache([layer(nil), layer(5)])
    var position = 0
    for added in [1, 3, 2, 7, 1] {
      // Entry (head, position, d) is 1000 head + 10 position + d.
      let values = (0..<2).flatMap { head in
        (position..<(position + added)).flatMap { p in (0..<3).map { Float(1000 * head + 10 * p + $0) } }
      }
      let chunk = Tensor([1, 2, added, 3], values)
      for index in 0..<2 { prefix.append(index, keys: chunk, values: chunk) }
      prefix.advance(added)
      position += added
      for (index, kept) in [(0, position), (1, min(position, 4))] {
        let expected = (0..<2).flatMap { head in
          ((position - kept)..<position).flatMap { p in (0..<3).map { Float(1000 * head + 10 * p + $0) } }
        }
        XCTAssertEqual(prefix.kept(index), kept)
        XCTAssertEqual(prefix.view(index).keys, Tensor([1, 2, kept, 3], expected))
      }
    }
    XCTAssertEqual(prefix.length, position)
    prefix.clear()
    XCTAssertEqual(prefix.view(1).values.shape, [1, 2, 0, 3])
  }

  func testTheHeadDoesNotDependOnHowItIsCut() {
    var generator = SystemRandomNumberGenerator()
    let (rows, vocabulary, hidden) = (3, 50, 4)
    let z = (0..<(rows * vocabulary)).map { _ in (Float.random(in: -9...9, using: &generator) * 4).rounded() / 4 }
    let noise = z.map { _ in Float.random(in: -3...3, using: &generator) }
    let table = (0..<(vocabulary * hidden)).map { _ in Float.random(in: -1...1, using: &generator) }
    var request = HeadRequest()
    request.soft = true
    request.topK = 6
    request.logits = true
    request.gumbel = { _, _ in [] }
    for cuts in [[0, 50], [0, 1, 17, 49, 50], [0, 25, 50]] {
      var state = HeadState(rows: rows, hidden: hidden, vocabulary: vocabulary, request: request)
      for (start, stop) in zip(cuts, cuts.dropFirst()) {
        var part = TilePart(
          top: [], arg: [], sumExp: [], sumZExp: [], score: [], sample: [], sampleZ: [], soft: [])
        var own: [Float] = []
        for row in 0..<rows {
          let values = Array(z[(row * vocabulary + start)..<(row * vocabulary + stop)])
          let scores = values.indices.map { values[$0] + noise[row * vocabulary + start + $0] }
          let best = values.max() ?? 0
          let weights = values.map { Float(exp(Double($0 - best))) }
          let drawn = scores.firstIndex(of: scores.max() ?? 0) ?? 0
          own += values
          part.top.append(best)
          part.arg.append(values.firstIndex(of: best) ?? 0)
          part.sumExp.append(weights.reduce(0, +))
          part.sumZExp.append(zip(values, weights).map { $0 * $1 }.reduce(0, +))
          part.score?.append(scores[drawn])
          part.sample?.append(drawn)
          part.sampleZ?.append(values[drawn])
          for column in 0..<hidden {
            part.soft?.append(
              weights.indices.map { weights[$0] * table[(start + $0) * hidden + column] }.reduce(0, +))
          }
        }
        state.add(start, part)
        state.add(start, logits: own)
      }
      let found = state.result()
      for row in 0..<rows {
        let values = z[(row * vocabulary)..<((row + 1) * vocabulary)].map(Double.init)
        let total = values.map { exp($0) }.reduce(0, +)
        let order = values.indices.sorted { values[$0] != values[$1] ? values[$0] > values[$1] : $0 < $1 }
        XCTAssertEqual(found.argmax[row], order[0])
        XCTAssertEqual(Double(found.logZ[row]), log(total), accuracy: 1e-4)
        XCTAssertEqual(Double(found.argmaxProbability[row]), exp(values[order[0]]) / total, accuracy: 1e-5)
        let entropy = values.map { -exp($0) / total * log(exp($0) / total) }.reduce(0, +)
        XCTAssertEqual(Double(found.entropy[row]), entropy, accuracy: 1e-4)
        XCTAssertEqual(found.topIds?[row], Array(order.prefix(6)))
        let scores = values.indices.map { Float(values[$0]) + noise[row * vocabulary + $0] }
        XCTAssertEqual(found.sample?[row], scores.firstIndex(of: scores.max() ?? 0))
        for column in 0..<hidden {
          let expected = values.indices.map { exp(values[$0]) / total * Double(table[$0 * hidden + column]) }
          XCTAssertEqual(
            Double(found.soft?.floats[row * hidden + column] ?? .nan), expected.reduce(0, +), accuracy: 1e-5)
        }
      }
      XCTAssertEqual(found.logits, Tensor([rows, vocabulary], z))
    }
  }

  func testTheCanvasOfAScreen() {
    func draft(_ step: Int, _ tokens: [Int], _ accepted: [Bool], start: Int = 0) -> Event {
      .draft(Draft(canvasIndex: 0, step: step, start: start, tokens: tokens, accepted: accepted))
    }
    var text = CanvasText()
    text.fold(draft(1, [9, 5, 9], [false, true, false]))
    XCTAssertEqual(text.cells.map(\.state), [.draft, .accepted, .draft])
    text.fold(draft(2, [4, 5, 9], [true, false, false]))
    XCTAssertEqual(text.cells.map(\.state), [.accepted, .accepted, .draft])
    text.fold(draft(3, [4, 6, 9], [false, false, false]))
    XCTAssertEqual(text.cells.map(\.state), [.accepted, .draft, .draft], "a token that changed is a guess again")
    XCTAssertEqual(text.step, 3)
    text.fold(.committed(Committed(canvasIndex: 0, start: 0, tokens: [4, 6])))
    XCTAssertEqual(text.answer, [4, 6])
    text.fold(draft(1, [7, 8], [true, false], start: 2))
    XCTAssertEqual(text.cells.map(\.token), [4, 6, 7, 8])
    XCTAssertEqual(text.cells.map(\.id), [0, 1, 2, 3])
    XCTAssertEqual(text.cells.map(\.state), [.committed, .committed, .accepted, .draft])
    text.fold(.committed(Committed(canvasIndex: 1, start: 2, tokens: [7, 1])))
    text.fold(.done(GenerationStatistics()))
    XCTAssertEqual(text.answer, [4, 6, 7, 1])
    XCTAssertEqual(text.statistics, GenerationStatistics())
  }
}
