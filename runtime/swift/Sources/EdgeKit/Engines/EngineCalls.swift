import CEdgeKit

/// What a call of the native core points at, as tensors and back.

/// Rows of a pass that see the same, and what their layers take.
struct CallSegment {
  let rows: Int
  let isCausal: Bool
  /// [rows, hidden]: what comes out replaces what goes in.
  let x: UnsafeMutableBufferPointer<Float>
  let layers: UnsafeBufferPointer<ek_attention>

  /// Of `phase`, an input of layer programs: 0 for a canvas, 1 for text that is encoded.
  var phase: Tensor { Tensor([1], integers: [isCausal ? 1 : 0]) }

  /// [rows, 1] factors for what the bundle's adapter adds; nil: it has none.
  var adapter: Tensor? {
    layers.first?.adapter.map { Tensor([rows, 1], Array(UnsafeBufferPointer(start: $0, count: rows))) }
  }

  /// [1, rows, hidden]
  func input(_ hidden: Int) -> Tensor { Tensor([1, rows, hidden], Array(x)) }
}

extension ek_layers_call {
  var hidden: Int { Int(hidden_size) }

  /// Throws `internalError` for a call without arrays.
  func parts() throws(EdgeKitError) -> [CallSegment] {
    guard let x, let segments else { throw .internalError("the native library gave a pass without arrays") }
    return UnsafeBufferPointer(start: segments, count: Int(segment_count)).map { own in
      CallSegment(
        rows: Int(own.count), isCausal: own.causal != 0,
        x: UnsafeMutableBufferPointer(start: x + Int(own.first_row) * hidden, count: Int(own.count) * hidden),
        layers: UnsafeBufferPointer(start: own.layers, count: Int(layer_count)))
    }
  }
}

extension ek_attention {
  /// Keys and values [1, KV, P, D] that the segment sees before its own, of all pieces.
  var prefix: (keys: Tensor, values: Tensor) { (prefix(\.k), prefix(\.v)) }

  private func prefix(_ side: KeyPath<ek_keys, UnsafePointer<Float>?>) -> Tensor {
    let heads = Int(kv_heads)
    var values: [Float] = []
    values.reserveCapacity(heads * Int(kept * head_dim))
    for head in 0..<heads {
      for piece in UnsafeBufferPointer(start: pieces, count: Int(piece_count)) {
        guard let start = piece[keyPath: side] else { continue }
        values += UnsafeBufferPointer(start: start + head * Int(piece.stride), count: Int(piece.count * head_dim))
      }
    }
    return Tensor([1, heads, Int(kept), Int(head_dim)], values)
  }

  /// cos and sin [rows, R], and where the rope has one query_scale [rows, 1].
  func tables(_ rows: Int) -> [String: Tensor] {
    func table(_ values: UnsafePointer<Float>, _ width: Int) -> Tensor {
      Tensor([rows, width], Array(UnsafeBufferPointer(start: values, count: rows * width)))
    }
    var found = ["cos": table(cos, Int(frequencies)), "sin": table(sin, Int(frequencies))]
    if let query_scale { found["query_scale"] = table(query_scale, 1) }
    return found
  }

  /// [rows, P + rows], added to the scores.
  func addedMask(_ rows: Int) -> Tensor {
    let shape = [rows, Int(kept) + rows]
    guard let mask else { return Tensor(zeros: shape) }
    return Tensor(shape, Array(UnsafeBufferPointer(start: mask, count: shape[0] * shape[1])))
  }

  /// Stores keys and values [1, KV, rows, D] of these rows where they are wanted. Throws `engineFailed` for others.
  func store(keys: Tensor, values: Tensor, rows: Int) throws(EdgeKitError) {
    for (tensor, target) in [(keys, k), (values, v)] {
      guard let target else { continue }
      let (heads, width) = (Int(kv_heads), rows * Int(head_dim))
      try tensor.check([1, heads, rows, Int(head_dim)])
      let given = tensor.floats
      for head in 0..<heads {
        given.withUnsafeBufferPointer { own in
          guard let start = own.baseAddress else { return }
          (target + head * Int(own_stride)).update(from: start + head * width, count: width)
        }
      }
    }
  }
}

extension ek_weights {
  var name: String { unit.map { String(cString: $0) } ?? "" }

  /// Runs `body` on the tensors by name, which are valid inside it.
  func bound<Value>(_ body: ([String: Tensor]) throws -> Value) rethrows -> Value {
    let memory = StoredMemory(borrowing: UnsafeRawBufferPointer(start: data, count: data == nil ? 0 : Int(bytes)))
    defer { memory.end() }
    var found: [String: Tensor] = [:]
    for own in UnsafeBufferPointer(start: tensors, count: Int(tensor_count)) {
      let shape = UnsafeBufferPointer(start: own.shape, count: Int(own.rank)).map { Int($0) }
      let range = Int(own.offset)..<Int(own.offset + own.bytes)
      found[String(cString: own.name)] = Tensor(
        shape, dtype: String(cString: own.dtype), bytes: StoredBytes(memory, range))
    }
    return try body(found)
  }
}

extension ek_tile_call {
  /// The function that gives what is asked for, but the scores themselves.
  var function: String { "head" + (gumbel != 0 ? "_sample" : "") + (soft != nil ? "_soft" : "") }

  /// What programs of the head take, by role; the noise in [rows, tokens].
  func inputs() throws(EdgeKitError) -> [String: Tensor] {
    let (count, width, size) = (Int(rows), Int(tokens), Int(rows * hidden_size))
    var found = [
      "x": Tensor([count, Int(hidden_size)], Array(UnsafeBufferPointer(start: x, count: size))),
      "temperature": Tensor([1], [temperature]),
    ]
    if gumbel == 0 { return found }
    var drawn = [Float](repeating: 0, count: count * width)
    try EdgeKitError.check(ek_gumbel_noise(seed, draw, first_token, tokens, rows, &drawn))
    var noise = drawn
    for row in 0..<count {
      for token in 0..<width { noise[row * width + token] = drawn[token * count + row] * gumbel_scale }
    }
    found["noise"] = Tensor([count, width], noise)
    return found
  }

  /// Stores what a program says of the tile, by role. Throws `engineFailed` for arrays that are missing or of another
  /// size.
  func store(_ given: [String: Tensor]) throws(EdgeKitError) {
    let count = Int(rows)
    func tensor(_ role: String, _ width: Int) throws(EdgeKitError) -> Tensor {
      guard let found = given[role] else {
        throw .engineFailed("a program of the head gives no '\(role)'; export the bundle again")
      }
      try found.check(role == "soft" || role == "z" ? [count, width] : [count])
      return found
    }
    func floats(_ role: String, _ target: UnsafeMutablePointer<Float>?, width: Int = 1) throws(EdgeKitError) {
      guard let target else { return }
      let found = try tensor(role, width).floats
      found.withUnsafeBufferPointer { own in own.baseAddress.map { target.update(from: $0, count: own.count) } }
    }
    func tokens(_ role: String, _ target: UnsafeMutablePointer<Int64>?) throws(EdgeKitError) {
      guard let target else { return }
      for (row, token) in try tensor(role, 1).integers.enumerated() { target[row] = Int64(token) }
    }
    if given["z"] != nil { return try floats("z", z, width: Int(self.tokens)) }
    try floats("max", largest)
    try tokens("argmax", argmax)
    try floats("sum_others", sum_others)
    try floats("sum_z_others", sum_z_others)
    try floats("score", score)
    try tokens("sample", sample)
    try floats("sample_z", sample_z)
    try floats("soft", soft, width: Int(hidden_size))
  }
}

extension Tensor {
  /// Throws `engineFailed` for another shape than the model says.
  func check(_ wanted: [Int]) throws(EdgeKitError) {
    guard shape == wanted else {
      throw .engineFailed("a program gave an array \(shape) for \(wanted); export the bundle again")
    }
  }

  /// Into memory for as many numbers. Throws `engineFailed` for another count.
  func store(to target: UnsafeMutableBufferPointer<Float>) throws(EdgeKitError) {
    guard count == target.count else {
      throw .engineFailed("a program gave an array \(shape) for \(target.count) numbers; export the bundle again")
    }
    _ = target.update(from: floats)
  }
}
