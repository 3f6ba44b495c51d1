import EdgeKit
import Foundation

/// The words of a command line, from the first on.
public struct Words {
  private var left: ArraySlice<String>

  public init(_ words: some Sequence<String>) { left = ArraySlice(words) }

  /// The next one; nil at the end.
  public mutating func next() -> String? { left.popFirst() }

  /// The number behind the option `name`.
  public mutating func number<Number: LosslessStringConvertible>(_ name: String) throws -> Number {
    guard let word = next(), let value = Number(word) else {
      throw EdgeKitError.invalidArgument("\(name) takes a number")
    }
    return value
  }
}

/// What all examples take: the folder of a bundle first, then options and token ids.
public struct Given {
  public let bundle: String
  public var prompt: [Int] = []
  public var session = SessionOptions()
  public var settings = GenerationSettings()

  /// Takes the bundle; where there is none, `needs` is what the example takes behind it.
  public init(_ words: inout Words, needs: String) throws {
    guard let path = words.next() else {
      throw EdgeKitError.invalidArgument("give the folder of a bundle, then \(needs)")
    }
    bundle = path
  }

  /// Takes an option with its value, or a token id.
  public mutating func take(_ word: String, from words: inout Words) throws {
    switch word {
    case "--seed": settings.seed = try words.number(word)
    case "--new-tokens": settings.maxNewTokens = try words.number(word) as Int
    case "--steps": settings.steps = try words.number(word) as Int
    case "--memory": session.memoryBytes = try words.number(word) as UInt64
    case "--option":
      let parts = (words.next() ?? "").split(separator: "=", maxSplits: 1).map(String.init)
      guard parts.count == 2, let value = try? JSONDecoder().decode(JSONValue.self, from: Data(parts[1].utf8)) else {
        throw EdgeKitError.invalidArgument("--option takes NAME=JSON, such as temperature=0.7")
      }
      settings.options[parts[0]] = value
    default:
      guard let id = Int(word) else { throw EdgeKitError.invalidArgument("'\(word)' is not a token id") }
      prompt.append(id)
    }
  }
}
