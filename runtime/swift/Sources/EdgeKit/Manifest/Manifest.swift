import Foundation

/// Content of `edgekit.json`. Paths are relative, with forward slashes, and stay inside the bundle.
public struct Manifest: Codable, Sendable, Equatable {
  public static let schemaVersion = 2

  /// Of the file itself, as flashload/manifest.py says; the native library has compared it.
  public var sha256: String
  public var schemaVersion: Int
  public var model: Model
  public var programs: Programs
  public var layers: [Layer]
  public var sampler: Sampler
  /// Preset, bits by role and notes, for people.
  public var quantization: JSONValue
  public var weights: Weights
  /// Every other file of the bundle.
  public var files: [String: FileEntry]
  /// Where the weights came from and what exported them, for people.
  public var provenance: JSONValue

  enum CodingKeys: String, CodingKey {
    case sha256
    case schemaVersion = "schema_version"
    case model, programs, layers, sampler, quantization, weights, files, provenance
  }

  /// `name` is that of the file, for messages. Throws `unsupportedVersion` or `malformedFile`.
  public init(data: Data, name: String) throws(EdgeKitError) {
    struct Version: Decodable {
      var schema_version: Int
    }
    let decoder = JSONDecoder()
    do {
      // First, alone: the other parts are of this version's shape only when the version is this one.
      let version = try decoder.decode(Version.self, from: data).schema_version
      guard version == Self.schemaVersion else {
        throw EdgeKitError.unsupportedVersion(
          "\(name): schema version \(version), this package reads \(Self.schemaVersion); update it or export the "
            + "bundle again")
      }
      self = try decoder.decode(Manifest.self, from: data)
    } catch let error as EdgeKitError {
      throw error
    } catch {
      throw .malformedFile(
        "\(name): is not a manifest that this package reads (\(Self.reason(error))); "
          + "export the bundle again")
    }
    try check(name)
  }

  private func check(_ name: String) throws(EdgeKitError) {
    for path in [weights.file] + files.keys.sorted() + programs.paths where !Self.isInside(path) {
      throw .malformedFile("\(name): '\(path.prefix(80))' is not a plain relative path inside the bundle")
    }
    for (label, table) in [("embedding", model.tables.embedding)] + (model.tables.head.map { [("head", $0)] } ?? []) {
      let ends = table.starts.dropFirst() + [table.rows]
      let follow = table.starts.first == 0 && zip(table.starts, ends).allSatisfy { $0 < $1 }
      guard follow, table.starts.count == table.runs.count else {
        throw .malformedFile("\(name): the tiles of table \(label) do not follow each other; export the bundle again")
      }
    }
    for (index, layer) in layers.enumerated() where model.ropes[layer.rope] == nil {
      throw .malformedFile("\(name): layer \(index) wants rope '\(layer.rope)', which the model does not have")
    }
    // Sizes of arrays are products of these.
    let sizes =
      [("hidden_size", model.hiddenSize), ("vocab_size", model.vocabularySize)]
      + [
        ("canvas_length", model.canvasLength ?? 1), ("max_positions", model.maxPositions ?? 1),
        ("prefix_block", model.prefixBlock ?? 1),
      ]
      + layers.flatMap { [("kv_heads", $0.kvHeads), ("head_dim", $0.headDim), ("window", $0.window ?? 1)] }
    for (label, size) in sizes where !(1...Self.mostPerAxis).contains(size) {
      throw .malformedFile("\(name): \(label) is \(size), not a size of a model; export the bundle again")
    }
  }

  /// No axis of an array that a model has is longer.
  static let mostPerAxis = 1 << 24

  /// A bundle comes from elsewhere: its manifest must not reach outside its folder on any system.
  static func isInside(_ path: String) -> Bool {
    let parts = path.split(separator: "/", omittingEmptySubsequences: false)
    return !path.contains(where: { "\\:\0".contains($0) }) && !parts.contains { ["", ".", ".."].contains($0) }
  }

  private static func reason(_ error: any Error) -> String {
    func path(_ context: DecodingError.Context) -> String {
      context.codingPath.map { $0.intValue.map(String.init) ?? $0.stringValue }.joined(separator: ".")
    }
    switch error {
    case DecodingError.keyNotFound(let key, let context):
      return "\(path(context).isEmpty ? "" : path(context) + ".")\(key.stringValue) is missing"
    case DecodingError.typeMismatch(let type, let context), DecodingError.valueNotFound(let type, let context):
      return "\(path(context)) is not of type \(type)"
    case DecodingError.dataCorrupted(let context):
      return context.codingPath.isEmpty ? "not valid JSON" : "\(path(context)): \(context.debugDescription)"
    default:
      return "\(error)"
    }
  }
}

extension Manifest {
  /// What the model is.
  public struct Model: Codable, Sendable, Equatable {
    public var family: String
    public var hiddenSize: Int
    public var vocabularySize: Int
    public var embeddingScale: Float
    /// Of the vocabulary head; 0: none.
    public var softcap: Float
    /// Whether position i's scores predict token i + 1.
    public var shiftLogits: Bool
    /// Whether committed text is encoded causally and kept.
    public var causalPrefix: Bool
    /// Positions of committed text that see each other; nil: it is causal.
    public var prefixBlock: Int?
    public var selfConditioning: Bool
    /// nil: canvases of any length.
    public var canvasLength: Int?
    /// nil: unknown.
    public var maxPositions: Int?
    /// Inverse frequencies by name.
    public var ropes: [String: [Float]]
    /// By rope: factors for rotated queries, where there are any.
    public var queryScales: [String: QueryScale]?
    /// Low-rank adapters beside the weights, which segments of a pass may ask for.
    public var adapters: [Adapter]?
    /// What tells the logical roles of tokens; nil: nothing.
    public var roleHead: RoleHead?
    public var tables: Tables
    /// The checkpoint's own configuration.
    public var config: JSONValue

    enum CodingKeys: String, CodingKey {
      case family
      case hiddenSize = "hidden_size"
      case vocabularySize = "vocab_size"
      case embeddingScale = "embedding_scale"
      case softcap
      case shiftLogits = "shift_logits"
      case causalPrefix = "causal_prefix"
      case prefixBlock = "prefix_block"
      case selfConditioning = "self_conditioning"
      case canvasLength = "canvas_length"
      case maxPositions = "max_positions"
      case ropes
      case queryScales = "query_scales"
      case adapters
      case roleHead = "role_head"
      case tables, config
    }
  }

  /// 1 + beta * log(1 + floor(position / positions)).
  public struct QueryScale: Codable, Sendable, Equatable {
    public var beta: Float
    public var positions: Int
  }

  /// A low-rank adapter: its largest rank, the matrices that it changes, by their names in a layer, how many stored ones
  /// those are, and its size.
  public struct Adapter: Codable, Sendable, Equatable {
    public var name: String
    public var rank: Int
    public var targets: [String]
    public var matrices: Int
    public var bytes: Int64
  }

  /// Two products over the hidden state, see runtime/native/src/session/role_head.h: the file of their weights, how many
  /// values are between them, and the roles in order.
  public struct RoleHead: Codable, Sendable, Equatable {
    public var file: String
    public var width: Int
    public var roles: [String]
  }

  public struct Tables: Codable, Sendable, Equatable {
    public var embedding: Table
    /// nil: tied to the embedding.
    public var head: Table?
  }

  /// A vocabulary table in tiles: tile i is `runs[i]` and holds the tokens from `starts[i]` to the next start, or `rows`.
  public struct Table: Codable, Sendable, Equatable {
    public var runs: [String]
    public var starts: [Int]
    public var rows: Int
    public var bits: Int

    /// The tokens of each tile.
    var tiles: [Range<Int>] { zip(starts, starts.dropFirst() + [rows]).map { $0..<$1 } }
  }

  public struct Layer: Codable, Sendable, Equatable {
    public var program: String
    /// Name of its run in the flash file; where packages hold the weights, none is there.
    public var run: String
    public var experts: [String]
    public var kvHeads: Int
    public var headDim: Int
    /// Key of `Model.ropes`.
    public var rope: String
    /// Positions that it sees, its own included; nil: all.
    public var window: Int?
    /// Where packages hold the weights: the package, and the place among its layers.
    public var package: String?
    public var slot: Int?

    enum CodingKeys: String, CodingKey {
      case program, run, experts
      case kvHeads = "kv_heads"
      case headDim = "head_dim"
      case rope, window, package, slot
    }
  }

  /// The denoising loop and its defaults.
  public struct Sampler: Codable, Sendable, Equatable {
    public var name: String
    public var config: JSONValue

    /// The token of open places, under either of its names; nil where the family has none.
    var mask: Int? {
      for name in ["mask_token_id", "mask_id"] {
        if case .integer(let token) = config[name] { return Int(exactly: token) }
      }
      return nil
    }
  }

  /// The flash file; `headerXXH3` is that of its first `headerSize` bytes.
  public struct Weights: Codable, Sendable, Equatable {
    public var file: String
    public var size: Int64
    public var sha256: String
    public var headerSize: Int64
    public var headerXXH3: String

    enum CodingKeys: String, CodingKey {
      case file, size, sha256
      case headerSize = "header_size"
      case headerXXH3 = "header_xxh3"
    }
  }

  public struct FileEntry: Codable, Sendable, Equatable {
    public var size: Int64
    public var sha256: String
    public var xxh3: String
  }
}
