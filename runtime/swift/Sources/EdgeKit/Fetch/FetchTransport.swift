import Foundation

#if canImport(FoundationNetworking)
  import FoundationNetworking
#endif

/// What sends the requests of a fetch.
public protocol FetchTransport: Sendable {
  /// The most that it likes to be asked for at once; nil: the core's own.
  var requestBytes: UInt64? { get }

  /// Sends a request to a source's address, and gives what comes to `fetch` by `answer` and `write`, in order. Returns where the
  /// answer has ended or no more of it are needed. Throws what `fetch` throws, `CancellationError`, and anything else for an
  /// answer that broke: what it lacks is asked for again.
  func send(_ request: FetchRequest, to address: String, of fetch: BundleFetch) async throws
}

/// Why a request gave less than it was asked for, in one line.
struct FetchTrouble: Error, CustomStringConvertible {
  let description: String

  init(_ description: String) { self.description = description }
}

extension URLRequest {
  /// What RFC 3986 lets stand in a name, parts of which have slashes between them.
  private static let plain = CharacterSet(
    charactersIn: "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/")

  /// A request for `bytes` of a file below an address from `offset` on; 0: all of it. Throws `FetchTrouble` for what is no
  /// address.
  init(below address: String, name: String, offset: UInt64, bytes: UInt64) throws {
    var folder = address
    while folder.hasSuffix("/") { folder.removeLast() }
    guard let encoded = name.addingPercentEncoding(withAllowedCharacters: Self.plain),
      let url = URL(string: folder + "/" + encoded), let scheme = url.scheme?.lowercased(),
      ["http", "https"].contains(scheme), url.host != nil
    else { throw FetchTrouble("\(address) is no address of a folder; give one as https://host/folder") }
    self.init(url: url, cachePolicy: .reloadIgnoringLocalCacheData)
    // Else the system asks for a packed answer, whose bytes are not those of the file.
    setValue("identity", forHTTPHeaderField: "Accept-Encoding")
    setValue("edgekit/\(NativeLibrary.version)", forHTTPHeaderField: "User-Agent")
    if bytes > 0 { setValue("bytes=\(offset)-\(offset + bytes - 1)", forHTTPHeaderField: "Range") }
  }
}

extension HTTPURLResponse {
  var contentRange: String? { value(forHTTPHeaderField: "Content-Range") }

  /// Throws `FetchTrouble` for an answer in a coding, which was not asked for.
  func checkCoding() throws {
    let coding = value(forHTTPHeaderField: "Content-Encoding") ?? "identity"
    if !["", "identity"].contains(coding.lowercased()) { throw FetchTrouble("answered in the coding \(coding), which was not asked for") }
  }
}
