import Foundation

/// A kind of pass; the number is the `phase` input of layer programs.
enum Phase: Int, Sendable { case denoise, prefill }

/// What a layer takes besides x: prefix_k, prefix_v [1, KV, P, D]; cos, sin [T, R]; mask [T, P + T], additive.
struct LayerInputs {
  var prefixKeys: Tensor
  var prefixValues: Tensor
  var cos: Tensor
  var sin: Tensor
  var mask: Tensor
  var phase: Phase
}

/// The additive mask value that hides a key.
let maskedScore: Float = -1e30

/// Additive mask [T, P + T] over the kept prefix and the pass's own positions `first`..<`first + length`, of which the
/// last `kept` before `first` are the prefix. A canvas sees all of what is kept: a layer with a window keeps window - 1
/// positions.
func attentionMask(first: Int, length: Int, kept: Int, window: Int?, phase: Phase) -> Tensor {
  let width = kept + length
  var mask = [Float](repeating: 0, count: length * width)
  if phase == .prefill {
    for row in 0..<length {
      for column in 0..<width {
        let distance = (first + row) - (first - kept + column)
        if distance < 0 || distance >= window ?? .max { mask[row * width + column] = maskedScore }
      }
    }
  }
  return Tensor([length, width], mask)
}

/// cos and sin [T, R] of the rotary angles of positions `first`..<`first + length`.
func rotaryTable(_ frequencies: [Float], first: Int, length: Int) -> (cos: Tensor, sin: Tensor) {
  let angles = (first..<(first + length)).flatMap { position in frequencies.map { Float(position) * $0 } }
  let shape = [length, frequencies.count]
  return (Tensor(shape, angles.map { cosf($0) }), Tensor(shape, angles.map { sinf($0) }))
}
