import Foundation

/// A part of a file that a task of a background session brings, as the description of its task has it: that is all that the
/// system keeps of it when the process ends.
struct BackgroundPart: Codable, Hashable, Sendable {
  /// The folder's, of the source.
  var address: String
  var name: String
  var offset: UInt64
  /// 0: all of the file.
  var bytes: UInt64

  /// Past its last byte.
  var end: UInt64 { offset + bytes }

  /// As a task's description.
  var text: String { NativeLibrary.json(self) ?? "" }

  init(address: String, name: String, offset: UInt64, bytes: UInt64) {
    (self.address, self.name, self.offset, self.bytes) = (address, name, offset, bytes)
  }

  /// nil for the description of a task of something else.
  init?(text: String?) {
    guard let text, let found = try? JSONDecoder().decode(Self.self, from: Data(text.utf8)) else { return nil }
    self = found
  }
}

/// Files of finished tasks, until their bytes are given to a fetch. Their names say which bytes they have, so what an earlier
/// process has left is found by looking. Of which source they are does not matter: the fetch compares all bytes.
struct BackgroundDownloads: Sendable {
  let folder: URL

  struct Found: Sendable {
    var name: String
    var offset: UInt64
    var bytes: UInt64
    var file: URL

    /// Past its last byte.
    var end: UInt64 { offset + bytes }
  }

  /// Throws where the folder cannot be made.
  init(folder: URL) throws {
    self.folder = folder
    try FileManager.default.createDirectory(at: folder, withIntermediateDirectories: true)
  }

  /// Every part that is here.
  func found() -> [Found] {
    let files = (try? FileManager.default.contentsOfDirectory(at: folder, includingPropertiesForKeys: nil)) ?? []
    return files.compactMap { file in
      let fields = file.lastPathComponent.split(separator: " ", maxSplits: 2)
      guard fields.count == 3, let offset = UInt64(fields[0]), let bytes = UInt64(fields[1]),
        let name = String(fields[2]).removingPercentEncoding
      else { return nil }
      return Found(name: name, offset: offset, bytes: bytes, file: file)
    }
  }

  /// Takes a finished task's file, which the system removes when its delegate returns. Throws where it cannot be moved.
  func keep(_ file: URL, name: String, offset: UInt64, bytes: UInt64) throws {
    let encoded = name.addingPercentEncoding(withAllowedCharacters: .alphanumerics) ?? ""
    let to = folder.appendingPathComponent("\(offset) \(bytes) \(encoded)")
    remove(to)
    try FileManager.default.moveItem(at: file, to: to)
  }

  func remove(_ file: URL) { try? FileManager.default.removeItem(at: file) }
}
