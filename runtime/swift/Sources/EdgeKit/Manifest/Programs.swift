/// The `programs` section of a manifest, by format.
public enum Programs: Sendable, Equatable {
  /// Op lists of the native core, which reads them itself.
  case native(JSONValue)
  case mlx(MLXPrograms)
  /// Core ML or Core AI.
  case packages(PackagePrograms)
  /// A format that this package does not run.
  case other(format: String, JSONValue)

  public var format: String {
    switch self {
    case .native: "native"
    case .mlx: "mlx"
    case .packages(let programs): programs.format.rawValue
    case .other(let format, _): format
    }
  }

  /// Of every file or folder that the section names.
  var paths: [String] {
    switch self {
    case .native, .other: []
    case .mlx(let programs): programs.entries.values.flatMap(\.functions).flatMap { [$0.gpu.file, $0.cpu.file] }
    case .packages(let programs): programs.packages.values.flatMap { [$0.path] + $0.files }
    }
  }
}

extension Programs: Codable {
  private enum CodingKeys: String, CodingKey { case format }

  public init(from decoder: any Decoder) throws {
    let format = try decoder.container(keyedBy: CodingKeys.self).decode(String.self, forKey: .format)
    switch format {
    case "native": self = .native(try JSONValue(from: decoder))
    case "mlx": self = .mlx(try MLXPrograms(from: decoder))
    case "coreml", "coreai": self = .packages(try PackagePrograms(from: decoder))
    default: self = .other(format: format, try JSONValue(from: decoder))
    }
  }

  public func encode(to encoder: any Encoder) throws {
    switch self {
    case .native(let value), .other(_, let value): try value.encode(to: encoder)
    case .mlx(let programs): try programs.encode(to: encoder)
    case .packages(let programs): try programs.encode(to: encoder)
    }
  }
}

/// A size in a manifest: fixed, or the name of a length ("t" positions of the pass, "p" of the prefix, "s" of both, "v"
/// entries of a tile).
public enum Size: Sendable, Equatable, Codable {
  case fixed(Int)
  case length(String)

  public init(from decoder: any Decoder) throws {
    let container = try decoder.singleValueContainer()
    if let value = try? container.decode(Int.self) {
      self = .fixed(value)
    } else {
      self = .length(try container.decode(String.self))
    }
  }

  public func encode(to encoder: any Encoder) throws {
    var container = encoder.singleValueContainer()
    switch self {
    case .fixed(let value): try container.encode(value)
    case .length(let name): try container.encode(name)
    }
  }
}

/// Functions that MLX imports. Weights are arguments, hence one for all layers of a kind.
public struct MLXPrograms: Codable, Sendable, Equatable {
  public var format: String
  public var layout: String
  /// The version of MLX that wrote the functions.
  public var mlx: String
  /// Of the stored scales.
  public var precision: String
  public var entries: [String: Entry]

  /// One function, or three around a mixture of experts.
  public enum Entry: Sendable, Equatable {
    case whole(Function)
    case experts(before: Function, expert: Function, after: Function)

    public var functions: [Function] {
      switch self {
      case .whole(let function): [function]
      case .experts(let before, let expert, let after): [before, expert, after]
      }
    }
  }

  public struct Function: Codable, Sendable, Equatable {
    /// In the order of the call; those named `w.<name>` are the tensors `<name>` of the run that the call is for.
    public var inputs: [Argument]
    public var outputs: [Argument]
    public var gpu: File
    public var cpu: File
  }

  public struct Argument: Codable, Sendable, Equatable {
    public var name: String
    /// As in safetensors.
    public var dtype: String
    public var shape: [Size]
  }

  public struct File: Codable, Sendable, Equatable {
    public var file: String
  }
}

extension MLXPrograms.Entry: Codable {
  private enum CodingKeys: String, CodingKey { case before, expert, after }

  public init(from decoder: any Decoder) throws {
    let container = try decoder.container(keyedBy: CodingKeys.self)
    if container.contains(.before) {
      self = .experts(
        before: try container.decode(MLXPrograms.Function.self, forKey: .before),
        expert: try container.decode(MLXPrograms.Function.self, forKey: .expert),
        after: try container.decode(MLXPrograms.Function.self, forKey: .after))
    } else {
      self = .whole(try MLXPrograms.Function(from: decoder))
    }
  }

  public func encode(to encoder: any Encoder) throws {
    switch self {
    case .whole(let function): try function.encode(to: encoder)
    case .experts(let before, let expert, let after):
      var container = encoder.container(keyedBy: CodingKeys.self)
      try container.encode(before, forKey: .before)
      try container.encode(expert, forKey: .expert)
      try container.encode(after, forKey: .after)
    }
  }
}

/// Packages that hold their weights as constants: Core ML's or Core AI's.
public struct PackagePrograms: Codable, Sendable, Equatable {
  public enum Format: String, Codable, Sendable { case coreml, coreai }

  public var format: Format
  public var layout: JSONValue
  /// The version of Core AI's tools that wrote the packages.
  public var coreai: String?
  /// Version by system.
  public var minimumOS: [String: String]
  public var precision: String
  /// Before products with weights of 8 bits: "int8", or "float" (as if it were not there).
  public var activations: String?
  /// By name: `self_conditioning`, `layers.A-B`, `final`, `head.N`.
  public var packages: [String: Package]

  enum CodingKeys: String, CodingKey {
    case format, layout, coreai
    case minimumOS = "minimum_os"
    case precision, activations, packages
  }

  public struct Package: Codable, Sendable, Equatable {
    /// Of the folder.
    public var path: String
    public var bytes: Int64
    /// Files of the bundle that belong to it.
    public var files: [String]
    /// Runs that it holds.
    public var parts: [String]?
    public var functions: [String: Function]
    /// Of a tile of the vocabulary head: its first token, and how many.
    public var start: Int?
    public var rows: Int?
  }

  public struct Function: Codable, Sendable, Equatable {
    public enum Kind: String, Codable, Sendable {
      case layers, final, head
      case selfConditioning = "self_conditioning"
    }

    public var kind: Kind
    /// Positions of a pass.
    public var t: Int
    /// Positions of prefix.
    public var p: Int
    public var inputs: [Feature]
    public var outputs: [Feature]
  }

  public struct Feature: Codable, Sendable, Equatable {
    public var name: String
    public var dtype: String
    public var shape: [Int]
    /// What the runtime feeds, or finds there: `x`, `prefix_k.0`, `cos.global`, `mask.full`, `mask.1024`, `phase`…
    public var role: String
  }
}
