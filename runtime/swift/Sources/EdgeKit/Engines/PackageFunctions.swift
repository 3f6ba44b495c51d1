/// The additive mask value that hides a key in packages: within float16, and as good as minus infinity there.
let packageMaskedScore: Float = -3e4

/// A function of a package and its name.
struct NamedFunction {
  let name: String
  let function: PackagePrograms.Function

  func input(_ role: String) -> PackagePrograms.Feature? { function.inputs.first { $0.role == role } }
  func output(_ role: String) -> PackagePrograms.Feature? { function.outputs.first { $0.role == role } }

  /// The prefix positions that each layer of the chunk takes.
  var prefixes: [Int] {
    let layers = function.outputs.filter { $0.role.hasPrefix("k.") }.count
    return (0..<layers).map { slot in
      guard let shape = input("prefix_k.\(slot)")?.shape, shape.count == 4 else { return 0 }
      return shape[2]
    }
  }
}

/// A variant of the vocabulary head.
struct HeadVariant: Equatable {
  var samples = false
  var soft = false
  var logits = false

  init(samples: Bool = false, soft: Bool = false, logits: Bool = false) {
    self.samples = samples
    self.soft = soft
    self.logits = logits
  }

  init(_ function: NamedFunction) {
    samples = function.input("noise") != nil
    soft = function.output("soft") != nil
    logits = function.output("z") != nil
  }

  var name: String { "head" + (samples ? "_sample" : "") + (soft ? "_soft" : "") + (logits ? "_logits" : "") }
}

extension PackagePrograms.Package {
  /// The smallest function for `length` rows and prefixes of `kept` positions per layer; of the head, the variant.
  /// Throws `invalidArgument` when none is so large, `unsupportedBundle` when the head has no such variant.
  func function(
    named package: String, for length: Int, kept: [Int] = [], head: HeadVariant? = nil
  ) throws(EdgeKitError) -> NamedFunction {
    let all = functions.map { NamedFunction(name: $0.key, function: $0.value) }
    let offered = all.filter { head == nil || HeadVariant($0) == head }
    if offered.isEmpty {
      throw .unsupportedBundle("package \(package) has no function \(head?.name ?? "at all"); export the bundle again")
    }
    let fitting = offered.filter { each in
      each.function.t >= length && zip(each.prefixes, kept).allSatisfy { $0 >= $1 }
    }
    let smallest = fitting.min { ($0.function.t, $0.function.p) < ($1.function.t, $1.function.p) }
    guard let smallest else {
      let behind = kept.max().map { $0 > 0 ? " after a prefix of \($0)" : "" } ?? ""
      throw .invalidArgument(
        "\(length) positions\(behind) are more than package \(package) was exported for; shorten the text or export for "
          + "longer ones")
    }
    return smallest
  }
}

/// The additive mask [T, kept + T] for `length` rows over `prefix` + `length` keys. Padded rows see what the last row
/// sees: a row that sees nothing would be an average of everything, whatever lies there.
func paddedMask(_ mask: Tensor, kept: Int, prefix: Int, length: Int) -> Tensor {
  let rows = mask.shape[0]
  let own = mask.shape[1] - kept
  let given = mask.floats
  let width = prefix + length
  var out = [Float](repeating: packageMaskedScore, count: length * width)
  for row in 0..<length {
    let source = min(row, rows - 1) * (kept + own)
    for column in 0..<kept { out[row * width + column] = max(given[source + column], packageMaskedScore) }
    for column in 0..<own {
      out[row * width + prefix + column] = max(given[source + kept + column], packageMaskedScore)
    }
  }
  return Tensor([length, width], out)
}

/// The tensor at the start of one of zeros of the feature's shape. Throws `engineFailed` when it is larger.
func padded(_ tensor: Tensor, to feature: PackagePrograms.Feature) throws(EdgeKitError) -> Tensor {
  if tensor.shape == feature.shape { return tensor }
  guard tensor.shape.count == feature.shape.count, zip(tensor.shape, feature.shape).allSatisfy({ $0 <= $1 }) else {
    throw .engineFailed(
      "input \(feature.role) has shape \(tensor.shape), the program takes \(feature.shape); export the bundle again")
  }
  var out = Tensor(zeros: feature.shape).floats
  let given = tensor.floats
  // Contiguous stretches of the last axis.
  let length = tensor.shape.last ?? 1
  guard length > 0 else { return Tensor(feature.shape, out) }
  for stretch in 0..<(given.count / length) {
    var rest = stretch
    var offset = 0
    var step = feature.shape.last ?? 1
    for axis in tensor.shape.indices.dropLast().reversed() {
      offset += rest % tensor.shape[axis] * step
      rest /= tensor.shape[axis]
      step *= feature.shape[axis]
    }
    out.replaceSubrange(offset..<(offset + length), with: given[(stretch * length)..<((stretch + 1) * length)])
  }
  return Tensor(feature.shape, out)
}
