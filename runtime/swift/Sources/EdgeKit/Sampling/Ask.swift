import CEdgeKit

/// What a sampler asks of whoever drives it.
enum Ask {
  /// Forget all text, encoded and uncached.
  case forget
  /// Encode tokens causally behind the prefix. They begin with what is uncached, which is then encoded.
  case encode([Int])
  /// A pass of tokens behind the prefix, to be answered. `soft` [tokens, hidden] is what an earlier answer gave, or nil.
  case denoise([Int], HeadRequest, soft: Tensor?)
  /// The pass of before with another request, to be answered.
  case project(HeadRequest)
  /// Something to tell; behind `done` nothing follows. `kept` is text of a causal prefix that is final and not encoded: it
  /// is uncached from now on. nil: nothing changes.
  case tell(Event, kept: [Int]?)

  /// A copy of what the library points at. `hiddenSize` is the width of a soft embedding; `statistics` are those of the
  /// sampler, which `done` tells. Throws `internalError` for a kind that the header does not have.
  init(
    _ ask: ek_ask, hiddenSize: Int, statistics: () throws(EdgeKitError) -> GenerationStatistics
  ) throws(EdgeKitError) {
    let ids = tokens(ask.ids, ask.count)
    let kept = ask.kept.map { tokens($0, ask.kept_count) }
    switch ask.kind {
    case EK_ASK_FORGET: self = .forget
    case EK_ASK_ENCODE: self = .encode(ids)
    case EK_ASK_DENOISE:
      let soft = ask.soft.map {
        Tensor([ids.count, hiddenSize], Array(UnsafeBufferPointer(start: $0, count: ids.count * hiddenSize)))
      }
      self = .denoise(ids, HeadRequest(ask.request, logits: ask.logits != 0), soft: soft)
    case EK_ASK_PROJECT: self = .project(HeadRequest(ask.request, logits: ask.logits != 0))
    case EK_ASK_DRAFT:
      let accepted = UnsafeBufferPointer(start: ask.accepted, count: ids.count).map { $0 != 0 }
      let draft = Draft(
        canvasIndex: Int(ask.canvas_index), step: Int(ask.step), start: Int(ask.start), tokens: ids, accepted: accepted)
      self = .tell(.draft(draft), kept: kept)
    case EK_ASK_COMMITTED:
      let part = Committed(canvasIndex: Int(ask.canvas_index), start: Int(ask.start), tokens: ids)
      self = .tell(.committed(part), kept: kept)
    case EK_ASK_DONE: self = .tell(.done(try statistics()), kept: kept)
    default: throw .internalError("a sampler of the native library asks for something unknown (\(ask.kind))")
    }
  }
}

private func tokens(_ ids: UnsafePointer<Int64>?, _ count: Int64) -> [Int] {
  UnsafeBufferPointer(start: ids, count: Int(count)).map { Int($0) }
}

extension HeadRequest {
  /// Noise is the native core's own, drawn for the tiles that the head asks for.
  fileprivate init(_ request: ek_head_request, logits: Bool) {
    let count = Int(request.row_count)
    rows = request.rows.map { tokens($0, request.row_count) }
    temperature = request.temperature
    gumbelScale = request.gumbel_scale
    soft = request.soft != 0
    topK = Int(request.top_k)
    self.logits = logits
    guard request.gumbel != 0 else { return }
    let (seed, draw) = (request.seed, request.draw)
    gumbel = { start, stop in
      let width = stop - start
      var drawn = [Float](repeating: 0, count: count * width)
      try EdgeKitError.check(
        ek_gumbel_noise(seed, draw, Int64(start), Int64(width), Int64(count), &drawn))
      // From [token, row] to [row, token].
      var noise = drawn
      for row in 0..<count {
        for token in 0..<width { noise[row * width + token] = drawn[token * count + row] }
      }
      return noise
    }
  }
}
