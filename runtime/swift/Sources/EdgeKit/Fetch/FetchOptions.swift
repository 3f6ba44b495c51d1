/// Where a bundle comes from, and which one it has to be.
public struct FetchOptions: Sendable, Equatable {
  /// 1 to 32 addresses of a folder, `https://host/folder`, that have the same files.
  public var sources: [String]
  /// The 64 digits that the manifest must begin with, or the SHA-256 of bundles.json where the address is that of several
  /// bundles; nil: any bundle.
  public var sha256: String?
  /// Of several bundles, those that this build executes and that run on this system are of use, and the first is taken;
  /// false: the first of all.
  public var forThisSystem = true
  /// Of several bundles, those of these formats are of use, and one that is alone has to be of one of them too; nil: what
  /// `forThisSystem` says, and one that is alone may have any format.
  public var formats: [String]?
  /// Whether the format of the bundle that is in the folder is kept: where there is one, and one of several bundles is of its
  /// format and runs on this system, that one is taken, whatever `formats` says; false: the choice is made anew.
  public var keepFormat = false
  /// Whether a bundle that is there with the same manifest is compared and mended; false: it is taken for whole if its files
  /// have their sizes.
  public var compare = false
  /// The most that is asked for at once, 65536 or more; nil: what suits the transport.
  public var requestBytes: UInt64?

  public init(sources: [String], sha256: String? = nil) {
    self.sources = sources
    self.sha256 = sha256
  }
}
