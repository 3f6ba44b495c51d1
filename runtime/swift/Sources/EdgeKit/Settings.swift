/// How a session holds a model. The same tokens come out whatever is set here.
public struct SessionOptions: Sendable, Equatable {
  /// Threads that compute, where the native core does; 0: one per core that the process may use.
  public var threads = 0
  /// Bounds the physical memory of the whole process; nil: no limit, all weights stay in memory.
  public var memoryBytes: UInt64?
  /// Bounds the weights that stay in memory further.
  public var residentBytes: UInt64?
  /// The longest encoded prefix that `memoryBytes` keeps memory free for; for a longer one of a generation weights
  /// give theirs up. Matters where `SessionInfo.causalPrefix`: prompt and answer together, the answer rounded up to
  /// whole canvases, less one canvas.
  public var positions = 2048
  /// The longest pass that `memoryBytes` keeps memory free for; for a longer one of a generation weights give theirs
  /// up. At least `SessionInfo.canvasLength`; where there is no causal prefix, prompt and answer together, the answer
  /// rounded up to whole blocks.
  public var canvas = 256
  /// Number of the adapter beside the bundle's weights that all is computed with, from 1; 0: none.
  public var adapter = 0

  public init(
    threads: Int = 0, memoryBytes: UInt64? = nil, residentBytes: UInt64? = nil, positions: Int = 2048,
    canvas: Int = 256, adapter: Int = 0
  ) {
    self.threads = threads
    self.memoryBytes = memoryBytes
    self.residentBytes = residentBytes
    self.positions = positions
    self.canvas = canvas
    self.adapter = adapter
  }
}

/// What one generation may ask for; nil keeps the checkpoint's own value.
public struct GenerationSettings: Sendable, Equatable {
  /// Equal seeds give equal events, on every machine.
  public var seed: UInt64
  /// Rounded up to whole canvases or blocks.
  public var maxNewTokens: Int?
  /// Denoising steps, per canvas where canvases are encoded.
  public var steps: Int?
  /// Sampler options by name, such as `["temperature": 0.7]`; `maxNewTokens` and `steps` must not be
  /// among them too.
  public var options: [String: JSONValue]

  public init(
    seed: UInt64 = 0, maxNewTokens: Int? = nil, steps: Int? = nil, options: [String: JSONValue] = [:]
  ) {
    self.seed = seed
    self.maxNewTokens = maxNewTokens
    self.steps = steps
    self.options = options
  }
}

/// What a session says about its model.
public struct SessionInfo: Sendable, Equatable {
  /// That compute, where the native core does; 0: the engine's own affair.
  public var threads: Int
  /// Tokens are 0..<vocabulary.
  public var vocabulary: Int
  public var hiddenSize: Int
  /// Positions that are encoded now.
  public var prefixLength: Int
  /// Of the model; nil: it takes canvases of any length.
  public var canvasLength: Int?
  /// That the model was made for, prompt and answer together; nil: unknown.
  public var maxPositions: Int?
  /// Whether committed text is encoded causally and kept; otherwise all of it stands on the canvas.
  public var causalPrefix: Bool
  /// Whether it tells the logical roles of positions, see `HeadRequest.roles`.
  public var roleHead: Bool
}

/// I/O and compute of a session so far.
public struct SessionStatistics: Sendable, Equatable {
  /// How the weights are read.
  public var ioMode: String
  /// Weights that stay in memory.
  public var pinnedBytes: UInt64
  /// Memory for reading ahead.
  public var ringBytes: UInt64
  /// Weights that every step reads.
  public var streamedBytesPerStep: UInt64
  public var bytesRead: UInt64
  /// At least one read was under way.
  public var ioSeconds: Double
  /// Computation waited for one.
  public var ioWaitSeconds: Double
  public var passSeconds: Double
}
