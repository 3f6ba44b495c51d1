import CEdgeKit

/// Bytes that a source is to be asked for.
public struct FetchRequest: Sendable, Equatable {
  /// Of this fetch alone: a later one, of a later process too, counts anew.
  let id: UInt64
  /// The source's place among those of `FetchOptions`.
  public let source: Int
  /// The file, below the source's address.
  public let name: String
  public let offset: UInt64
  /// 0: all of the file, without a Range header.
  public let bytes: UInt64
  /// Of the file; 0: not known.
  public let size: UInt64
  /// To be let pass before it is sent, as the source has failed.
  public let waitMilliseconds: Int
  /// The answer has to begin within this time, and after that `leastBytesPerSecond` have to come in each such time; a transport that
  /// carries requests out by itself ends one that gives less.
  public let patienceMilliseconds: Int
  public let leastBytesPerSecond: Int

  init(_ found: ek_fetch_request) {
    id = found.id
    source = Int(found.source)
    name = String(cString: found.name)
    offset = found.offset
    bytes = found.bytes
    size = found.size
    waitMilliseconds = Int(found.wait_milliseconds)
    patienceMilliseconds = Int(found.patience_milliseconds)
    leastBytesPerSecond = Int(found.least_bytes_per_second)
  }
}

/// What comes next of a bundle that arrives.
public enum FetchStep: Sendable, Equatable {
  /// The request is to be sent.
  case ask(FetchRequest)
  /// Something that was here has been compared: ask for the next step.
  case working
  /// All is asked for: ask for the next step when a request has given something or is over.
  case wait
  /// All is here, for `BundleFetch.finish`.
  case ready
}

/// How far a bundle has arrived, in bytes.
public struct FetchProgress: Sendable, Equatable {
  /// The folder had this bundle already.
  public var isCurrent: Bool
  /// Of the bundle; 0 until the manifest has come.
  public var totalBytes: UInt64
  /// Of these, compared.
  public var wholeBytes: UInt64
  /// Further ones, which wait for the rest of their run.
  public var arrivedBytes: UInt64
  /// That sources gave since it was opened.
  public var fetchedBytes: UInt64
  /// From the bundle that was there.
  public var copiedBytes: UInt64
  /// Left by an earlier fetch.
  public var foundBytes: UInt64
  /// Runs and files that came with other bytes.
  public var damaged: Int
  /// Of several bundles, the path of the one that is taken, below the source's address; nil before that is known, and where a
  /// bundle is alone.
  public var chosen: String?
  /// It was chosen by the format of the bundle in the folder, see `FetchOptions.keepFormat`.
  public var isFormatKept: Bool

  init(_ found: ek_fetch_info) {
    isCurrent = found.current != 0
    totalBytes = found.total_bytes
    wholeBytes = found.whole_bytes
    arrivedBytes = found.arrived_bytes
    fetchedBytes = found.fetched_bytes
    copiedBytes = found.copied_bytes
    foundBytes = found.found_bytes
    damaged = Int(found.damaged)
    chosen = found.chosen.map { String(cString: $0) }
    isFormatKept = found.kept_format != 0
  }
}
