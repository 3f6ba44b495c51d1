import CEdgeKit

/// A message of a conversation.
public struct Message: Sendable, Equatable {
  public enum Role: String, Sendable, Codable { case system, user, assistant }

  public var role: Role
  public var content: String

  public init(_ role: Role, _ content: String) {
    self.role = role
    self.content = content
  }
}

/// Text to token ids and back, and conversations as the model's chat template writes them: the tokenizer of a bundle, by
/// the native core. Any threads may use it at the same time.
public final class Tokenizer: Sendable {
  /// The core takes calls from any thread.
  fileprivate struct Handle: @unchecked Sendable {
    let text: OpaquePointer
  }

  fileprivate let handle: Handle
  /// The token of places that a masked family leaves open; nil where the family has none.
  let mask: Int?

  /// Opens the tokenizer of the bundle in the folder `path`; a `Session` has one already. Throws what `Bundle.init(path:)`
  /// throws, and `unsupportedBundle` for one that the core does not read.
  public init(bundle path: String) throws(EdgeKitError) {
    try NativeLibrary.check()
    let bundle = try Bundle(path: path)  // of several the one that runs here
    mask = bundle.manifest.sampler.mask
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_text_open(bundle.path, &opened))
    guard let opened else { throw .internalError("ek_text_open gave no text") }
    handle = Handle(text: opened)
  }

  deinit { ek_text_close(handle.text) }

  /// The id of the token that is spelled exactly so; nil: there is none.
  public func find(_ token: String) throws(EdgeKitError) -> Int? {
    var id: Int64 = -1
    try EdgeKitError.check(ek_text_find(handle.text, token, &id))
    return id < 0 ? nil : Int(id)
  }

  /// How many tokens have a text; the model may know more ids than that.
  public func count() throws(EdgeKitError) -> Int {
    var found: Int64 = 0
    try EdgeKitError.check(ek_text_count(handle.text, &found))
    return Int(found)
  }

  /// Token ids of a text, with what the tokenizer puts around one unless `addSpecial` is false.
  public func encode(_ text: String, addSpecial: Bool = true) throws(EdgeKitError) -> [Int] {
    try encoded(text) { bytes, size, ids, capacity, count in
      ek_text_encode(handle.text, bytes, size, addSpecial ? 1 : 0, ids, capacity, count)
    }
  }

  /// Token ids of a text that goes on behind another one, as the next turn of a conversation does: nothing is put in front
  /// of it or around it, and no token of it reaches into what is before.
  public func encodeBehind(_ text: String) throws(EdgeKitError) -> [Int] {
    try encoded(text) { bytes, size, ids, capacity, count in
      ek_text_encode_behind(handle.text, bytes, size, ids, capacity, count)
    }
  }

  private func encoded(
    _ text: String,
    _ call: (UnsafePointer<CChar>, UInt64, UnsafeMutablePointer<Int64>, Int64, UnsafeMutablePointer<Int64>) -> ek_status
  ) throws(EdgeKitError) -> [Int] {
    let bytes = Array(text.utf8CString)  // a NUL behind them
    let size = UInt64(bytes.count - 1)
    var ids = [Int64](repeating: 0, count: bytes.count + 16)  // a token is a byte or more, mostly
    var count: Int64 = 0
    var status = call(bytes, size, &ids, Int64(ids.count), &count)
    if status == EK_BUFFER_TOO_SMALL {
      ids = [Int64](repeating: 0, count: Int(count))
      status = call(bytes, size, &ids, Int64(ids.count), &count)
    }
    try EdgeKitError.check(status)
    return ids.prefix(Int(count)).map { Int($0) }
  }

  /// The text of tokens, without special ones unless `skipSpecial` is false. Bytes that are no text become U+FFFD.
  public func decode(_ tokens: [Int], skipSpecial: Bool = true) throws(EdgeKitError) -> String {
    let ids = tokens.map { Int64($0) }
    return try filled { buffer, capacity, size in
      ek_text_decode(handle.text, ids, Int64(ids.count), skipSpecial ? 1 : 0, buffer, capacity, size)
    }
  }

  /// What a screen shows of cells: bytes of a text, and the parts that they are of.
  func draw(_ cells: [ek_canvas_cell]) throws(EdgeKitError) -> (text: [UInt8], parts: [ek_canvas_part]) {
    var parts = [ek_canvas_part](repeating: ek_canvas_part(), count: cells.count)
    var text = [CChar](repeating: 0, count: 4096)  // enough for most canvases
    var size: UInt64 = 0
    var count: Int64 = 0
    let room = Int64(cells.count)
    var status = ek_canvas_draw(handle.text, cells, room, &text, UInt64(text.count), &size, &parts, room, &count)
    if status == EK_BUFFER_TOO_SMALL {
      let needed = size
      text = [CChar](repeating: 0, count: Int(needed))
      status = ek_canvas_draw(handle.text, cells, room, &text, needed, &size, &parts, room, &count)
    }
    try EdgeKitError.check(status)
    return (text.prefix(Int(size)).map { UInt8(bitPattern: $0) }, Array(parts.prefix(Int(count))))
  }

  /// A conversation as the model's chat template writes it, with the opening of the answer behind it: perhaps a system
  /// message, then the user's and the assistant's in turn, the last of them the user's. Throws `invalidState` where the
  /// bundle has no form of its template, `invalidArgument` for another order.
  public func chat(_ conversation: [Message]) throws(EdgeKitError) -> String {
    let texts = conversation.map { (role: copied($0.role.rawValue), content: copied($0.content)) }
    defer {
      for text in texts {
        text.role.deallocate()
        text.content.deallocate()
      }
    }
    let messages = zip(conversation, texts).map { message, text in
      ek_text_message(
        role: text.role, content: text.content, content_bytes: UInt64(message.content.utf8.count))
    }
    return try filled { buffer, capacity, size in
      ek_text_chat(handle.text, messages, Int64(messages.count), buffer, capacity, size)
    }
  }

  /// Token ids of a conversation, for `Session.generate`; see `chat`.
  public func prompt(_ conversation: [Message]) throws(EdgeKitError) -> [Int] {
    try encode(try chat(conversation), addSpecial: false)
  }
}

/// Text of tokens that arrive in pieces. A character may be spread over several tokens, so what is not yet certain is held
/// back.
public final class TextStream {
  /// It must not end before this does.
  private let tokenizer: Tokenizer
  private let stream: OpaquePointer

  public init(_ tokenizer: Tokenizer, skipSpecial: Bool = true) throws(EdgeKitError) {
    var opened: OpaquePointer?
    try EdgeKitError.check(ek_text_stream_open(tokenizer.handle.text, skipSpecial ? 1 : 0, &opened))
    guard let opened else { throw .internalError("ek_text_stream_open gave no stream") }
    self.tokenizer = tokenizer
    stream = opened
  }

  deinit { withExtendedLifetime(tokenizer) { ek_text_stream_close(stream) } }

  /// Takes more tokens, and gives the text that has become certain.
  public func push(_ tokens: [Int]) throws(EdgeKitError) -> String {
    let ids = tokens.map { Int64($0) }
    try EdgeKitError.check(ek_text_stream_push(stream, ids, Int64(ids.count)))
    return try taken()
  }

  /// No tokens follow for now: gives what was held back, with U+FFFD for what is incomplete in it.
  public func finish() throws(EdgeKitError) -> String {
    try EdgeKitError.check(ek_text_stream_finish(stream))
    return try taken()
  }

  private func taken() throws(EdgeKitError) -> String {
    try filled { buffer, capacity, size in ek_text_stream_take(stream, buffer, capacity, size) }
  }
}

/// The UTF-8 text that `call` writes into a buffer, asked for its size first.
private func filled(
  _ call: (UnsafeMutablePointer<CChar>?, UInt64, UnsafeMutablePointer<UInt64>) -> ek_status
) throws(EdgeKitError) -> String {
  var size: UInt64 = 0
  try EdgeKitError.check(call(nil, 0, &size))
  guard size > 0 else { return "" }
  var buffer = [CChar](repeating: 0, count: Int(size))
  try EdgeKitError.check(call(&buffer, size, &size))
  return String(decoding: buffer.prefix(Int(size)).map { UInt8(bitPattern: $0) }, as: UTF8.self)
}
