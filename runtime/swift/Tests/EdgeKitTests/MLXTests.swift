#if canImport(Cmlx)
  import XCTest

  @testable import EdgeKit

  /// MLX bundles through mlx-c, on its processor device: what the Python session says of the same passes.
  final class MLXTests: XCTestCase {
    func testPassesAreThoseOfPython() throws {
      for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) where format == "mlx" {
        let recording = try Recording(name)
        let bundle = try EdgeKit.Bundle(path: recording.path)
        let runner = try MLXFunctions(bundle: bundle, device: .cpu)
        for resident in [nil, UInt64(0)] {
          let options = SessionOptions(residentBytes: resident)
          let segments = try Segments(bundle: bundle, runner: runner, options: options)
          try check(recording, segments.denoiser, tolerance: 1e-3)
        }
      }
    }

    /// Resident, streamed, and while memory runs low: event for event those of Python.
    func testGenerationsAreThoseOfPython() async throws {
      let all = try Fixtures().decode("segment_generations.json", as: [String: RecordedGeneration].self)
      var count = 0
      for (name, expected) in all where name.hasPrefix("mlx") {
        for options in [SessionOptions(), SessionOptions(residentBytes: 0)] {
          let pressure = ManualMemoryPressure()
          let session = try await Session(path: expected.bundle, options: options, memoryPressure: pressure)
          for level in [MemoryPressure.normal, .warning, .critical] {
            var events: [Event] = []
            for try await event in session.generate(expected.prompt, settings: expected.settings) {
              events.append(event)
              if events.count == 2 { pressure.send(level) }
            }
            XCTAssertEqual(events.compactMap(RecordedEvent.init), expected.events, "\(name) \(level)")
          }
          let left = try await session.statistics().pinnedBytes
          XCTAssertEqual(left, 0)
          count += 1
        }
      }
      XCTAssertGreaterThan(count, 0)
    }

    func testWhatMLXRefusesIsAnError() throws {
      func refused(_ file: String, _ bundle: EdgeKit.Bundle) throws -> EdgeKitError? {
        let runner = try MLXFunctions(bundle: bundle, device: .cpu)
        let function = MLXPrograms.Function(inputs: [], outputs: [], gpu: .init(file: file), cpu: .init(file: file))
        do {
          _ = try runner.call("no", function, inputs: [])
          return nil
        } catch {
          return error
        }
      }
      for (name, format) in try Fixtures().decode("segments.json", as: [String: String].self) where format == "mlx" {
        let bundle = try EdgeKit.Bundle(path: try Recording(name).path)
        guard case .invalidArgument(let text) = try refused("no.mlxfn", bundle) else { return XCTFail("not refused") }
        XCTAssertTrue(text.contains("no.mlxfn"), text)
        // A file of the bundle that is no function.
        let other = try XCTUnwrap(bundle.manifest.files.keys.sorted().first { !$0.hasSuffix(".mlxfn") })
        guard case .engineFailed(let said) = try refused(other, bundle) else { return XCTFail("\(other) was run") }
        XCTAssertTrue(said.contains(other), said)
      }
    }
  }
#endif
