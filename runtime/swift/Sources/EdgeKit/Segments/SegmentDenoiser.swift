/// What a format runs itself: its segments, on arrays. Everything around them is shared.
protocol SegmentBackend: AnyObject {
  /// Layers by number, those that one call runs together.
  var chunks: [[Int]] { get }
  /// The tiles of the vocabulary head, in ascending order of tokens.
  var tiles: [Range<Int>] { get }
  /// What stays in memory now.
  var residency: WeightResidency { get }
  /// Has weights that stay in memory given back before the next are used; from any thread.
  var relieve: @Sendable (MemoryPressure) -> Void { get }

  func begin(_ pass: Pass, then: Pass?)
  func idle()

  /// The decoder's input [1, T, H]; both arguments carry the embedding scale.
  func selfCondition(embedded: Tensor, soft: Tensor) throws -> Tensor
  /// A chunk of layers: y [1, T, H], and keys and values [1, KV, T, D] of these positions for each layer.
  func layers(_ chunk: Int, x: Tensor, _ inputs: [LayerInputs]) throws -> (y: Tensor, kept: [(Tensor, Tensor)])
  /// The last norm: [1, T, H].
  func final(_ x: Tensor) throws -> Tensor
  /// A tile of the vocabulary head for rows x [R, H], and z [R, V'] where `logits` asks for it. `noise` [R, V'].
  func head(
    _ tile: Int, x: Tensor, temperature: Float, noise: Tensor?, soft: Bool, logits: Bool
  ) throws -> (part: TilePart, z: [Float]?)
}

/// A model whose layers run as segments: embedding, prefix, masks, rotary tables and the joined head around a backend.
final class SegmentDenoiser: Denoiser {
  /// Positions per prefill pass for models without a canvas length of their own.
  private static let prefillPositions = 256

  private let manifest: Manifest
  private let backend: any SegmentBackend
  private let file: FlashFile
  private var cache: PrefixCache
  /// Hidden states [T, H] of the last `denoise`.
  private var last: Tensor?

  init(bundle: Bundle, file: FlashFile, backend: any SegmentBackend) {
    manifest = bundle.manifest
    self.file = file
    self.backend = backend
    cache = PrefixCache(bundle.manifest.layers)
  }

  var vocabulary: Int { manifest.model.vocabularySize }
  var hiddenSize: Int { manifest.model.hiddenSize }
  var prefixLength: Int { cache.length }
  private(set) var encoded: [[Int]] = []
  var uncached: [Int] = []

  func reset() {
    forgetPrefix()
    uncached = []
  }

  private func forgetPrefix() {
    cache.clear()
    encoded = []
  }

  func prefill(_ ids: [Int]) throws {
    guard manifest.model.causalPrefix else {
      throw EdgeKitError.invalidState("this model encodes no text: all of it stands on the canvas")
    }
    let chunk = manifest.model.canvasLength ?? Self.prefillPositions
    do {
      for start in stride(from: 0, to: ids.count, by: chunk) {
        let part = Array(ids[start..<min(start + chunk, ids.count)])
        let more = start + chunk < ids.count
        backend.begin(.prefill, then: more ? .prefill : .denoise)
        _ = try layers(try embed(part), .prefill)
        cache.advance(part.count)
      }
    } catch {
      backend.idle()
      forgetPrefix()
      throw error
    }
    if !ids.isEmpty { encoded.append(ids) }
  }

  func denoise(_ ids: [Int], _ request: HeadRequest, soft: Tensor?) throws -> HeadOutput {
    if ids.isEmpty { throw EdgeKitError.invalidArgument("a canvas has at least one position") }
    return try pass(.denoise) {
      var x = try embed(ids)
      if manifest.model.selfConditioning {
        if let soft, soft.shape != [ids.count, hiddenSize] {
          throw EdgeKitError.invalidArgument(
            "soft embeddings of shape \(soft.shape) for \(ids.count) positions of \(hiddenSize)")
        }
        let scale = manifest.model.embeddingScale
        let earlier = soft.map { Tensor(x.shape, $0.floats.map { $0 * scale }) } ?? Tensor(zeros: x.shape)
        x = try fitting(try backend.selfCondition(embedded: x, soft: earlier), x.shape)
      }
      let y = try fitting(try backend.final(try layers(x, .denoise)), x.shape)
      last = Tensor([ids.count, hiddenSize], y.floats)
      return try head(request)
    }
  }

  func project(_ request: HeadRequest) throws -> HeadOutput { try pass(.head) { try head(request) } }

  /// Stops loading ahead.
  func idle() { backend.idle() }

  private func pass<Value>(_ kind: Pass, _ body: () throws -> Value) throws -> Value {
    backend.begin(kind, then: .denoise)
    do {
      return try body()
    } catch {
      backend.idle()
      throw error
    }
  }

  /// Scaled embeddings [1, T, H].
  private func embed(_ ids: [Int]) throws -> Tensor {
    guard let wrong = ids.firstIndex(where: { !(0..<vocabulary).contains($0) }) else {
      let table = manifest.model.tables.embedding
      var out = [Float](repeating: 0, count: ids.count * hiddenSize)
      for (run, tokens) in zip(table.runs, table.tiles) {
        let here = ids.indices.filter { tokens.contains(ids[$0]) }
        if here.isEmpty { continue }
        let rows = try file.tableRows(run, here.map { ids[$0] - tokens.lowerBound }, hidden: hiddenSize)
        for (index, position) in here.enumerated() {
          for column in 0..<hiddenSize {
            out[position * hiddenSize + column] = rows[index * hiddenSize + column] * manifest.model.embeddingScale
          }
        }
      }
      return Tensor([1, ids.count, hiddenSize], out)
    }
    throw EdgeKitError.invalidArgument(
      "token \(ids[wrong]) at position \(wrong) is outside the model's vocabulary of \(vocabulary) tokens")
  }

  private func layers(_ x: Tensor, _ phase: Phase) throws -> Tensor {
    let length = x.shape[1]
    let tables = manifest.model.ropes.mapValues { rotaryTable($0, first: cache.length, length: length) }
    var x = x
    for (index, chunk) in backend.chunks.enumerated() {
      let inputs = chunk.map { number in
        let layer = manifest.layers[number]
        let (keys, values) = cache.view(number)
        let empty = Tensor(zeros: [length, 0])
        return LayerInputs(
          prefixKeys: keys, prefixValues: values, cos: tables[layer.rope]?.cos ?? empty,
          sin: tables[layer.rope]?.sin ?? empty,
          mask: attentionMask(
            first: cache.length, length: length, kept: cache.kept(number), window: layer.window, phase: phase),
          phase: phase)
      }
      let (y, kept) = try backend.layers(index, x: x, inputs)
      x = try fitting(y, x.shape)
      if phase == .prefill {
        for (number, (keys, values)) in zip(chunk, kept) {
          let shape = [1, manifest.layers[number].kvHeads, length, manifest.layers[number].headDim]
          cache.append(number, keys: try fitting(keys, shape), values: try fitting(values, shape))
        }
      }
    }
    return x
  }

  /// What an engine gave, of the shape that the model says.
  private func fitting(_ tensor: Tensor, _ shape: [Int]) throws(EdgeKitError) -> Tensor {
    guard tensor.shape == shape else {
      throw .engineFailed("a pass gave an array \(tensor.shape) for \(shape); export the bundle again")
    }
    return tensor
  }

  private func head(_ request: HeadRequest) throws -> HeadOutput {
    guard let last else { throw EdgeKitError.invalidState("project needs a denoise before it") }
    let rows = request.rows ?? Array(0..<last.shape[0])
    if let wrong = rows.first(where: { !(0..<last.shape[0]).contains($0) }) {
      throw EdgeKitError.invalidArgument("row \(wrong) of a canvas of \(last.shape[0]) positions was asked for")
    }
    let all = last.floats
    let x = Tensor([rows.count, hiddenSize], rows.flatMap { all[($0 * hiddenSize)..<(($0 + 1) * hiddenSize)] })
    var state = HeadState(rows: rows.count, hidden: hiddenSize, vocabulary: vocabulary, request: request)
    let logits = request.logits || request.topK > 0
    for (index, tile) in backend.tiles.enumerated() {
      let noise = try request.gumbel.map { draw in
        let drawn = try draw(tile.lowerBound, tile.upperBound)
        guard drawn.count == rows.count * tile.count else {
          throw EdgeKitError.invalidArgument(
            "noise for \(rows.count) rows of \(tile.count) tokens has \(drawn.count) values")
        }
        return Tensor([rows.count, tile.count], drawn.map { $0 * request.gumbelScale })
      }
      let (part, z) = try backend.head(
        index, x: x, temperature: request.temperature, noise: noise, soft: request.soft, logits: logits)
      let hidden = request.soft ? hiddenSize : 0
      guard part.holds(rows.count, samples: noise != nil, hidden: hidden),
        z?.count ?? rows.count * tile.count == rows.count * tile.count
      else { throw EdgeKitError.engineFailed("tile \(index) of the head gave too few values; export the bundle again") }
      state.add(tile.lowerBound, part)
      if let z { state.add(tile.lowerBound, logits: z) }
    }
    return state.result()
  }
}
