/// Keys and values of committed positions, per layer. A layer with a window keeps its last window - 1 positions.
struct PrefixCache {
  private struct Layer {
    let heads: Int
    let dimension: Int
    let window: Int?
    /// [kept, D] of each head.
    var keys: [[Float]]
    var values: [[Float]]
    var kept = 0

    init(_ layer: Manifest.Layer) {
      heads = layer.kvHeads
      dimension = layer.headDim
      window = layer.window
      keys = Array(repeating: [], count: heads)
      values = keys
    }
  }

  private var layers: [Layer]
  private(set) var length = 0

  init(_ layers: [Manifest.Layer]) { self.layers = layers.map(Layer.init) }

  mutating func clear() {
    length = 0
    for index in layers.indices {
      layers[index].kept = 0
      layers[index].keys = Array(repeating: [], count: layers[index].heads)
      layers[index].values = layers[index].keys
    }
  }

  /// Kept positions of a layer.
  func kept(_ layer: Int) -> Int { layers[layer].kept }

  /// Keys and values [1, KV, P, D] of the kept positions.
  func view(_ layer: Int) -> (keys: Tensor, values: Tensor) {
    let own = layers[layer]
    let shape = [1, own.heads, own.kept, own.dimension]
    return (Tensor(shape, Array(own.keys.joined())), Tensor(shape, Array(own.values.joined())))
  }

  /// Add the keys and values [1, KV, T, D] of a chunk to one layer; `advance` once all layers have it.
  mutating func append(_ layer: Int, keys: Tensor, values: Tensor) {
    let added = keys.shape[2]
    let width = added * layers[layer].dimension
    let most = layers[layer].window.map { $0 - 1 } ?? .max
    let keep = min(layers[layer].kept + added, most)
    let drop = (layers[layer].kept + added - keep) * layers[layer].dimension
    let newKeys = keys.floats
    let newValues = values.floats
    for head in 0..<layers[layer].heads {
      layers[layer].keys[head] += newKeys[(head * width)..<((head + 1) * width)]
      layers[layer].values[head] += newValues[(head * width)..<((head + 1) * width)]
      layers[layer].keys[head].removeFirst(drop)
      layers[layer].values[head].removeFirst(drop)
    }
    layers[layer].kept = keep
  }

  /// Count positions as committed.
  mutating func advance(_ count: Int) { length += count }
}
