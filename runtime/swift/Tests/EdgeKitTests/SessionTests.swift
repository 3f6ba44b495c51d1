import XCTest

@testable import EdgeKit

final class SessionTests: XCTestCase {
  func testEventsComeInOrderAndTheStreamEnds() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 3)
    remote.allow(3)
    var events: [Event] = []
    for try await event in session.generate([4, 5]) { events.append(event) }
    guard events.count == 5, case .draft(let third) = events[2], case .done = events[4] else {
      return XCTFail("\(events)")
    }
    XCTAssertEqual(third.step, 3)
    XCTAssertEqual(events[3], .committed(Committed(canvasIndex: 0, start: 0, tokens: [4, 5])))
    XCTAssertFalse(remote.ranOnMainThread)
  }

  func testErrorsEndTheStreamAndTheSessionGoesOn() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 1)
    remote.allow(1)
    do {
      for try await _ in session.generate([]) { XCTFail("an event of a generation that fails") }
      XCTFail("no error")
    } catch let error as EdgeKitError {
      XCTAssertEqual(error, .invalidArgument("no prompt"))
    }
    var count = 0
    for try await _ in session.generate([1]) { count += 1 }
    XCTAssertEqual(count, 3)
  }

  func testCancellingTheTaskStopsAtTheNextStep() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 100)
    let task = Task {
      var count = 0
      for try await _ in session.generate([1]) { count += 1 }
      return count
    }
    remote.allow(2)
    let began = await eventually { remote.eventsGiven == 2 }
    XCTAssertTrue(began)
    task.cancel()
    _ = try await task.value
    remote.allow(50)
    // Only when the first has stopped does the second run.
    let second = Task { try await collect(session.generate([2])) }
    let next = await eventually { remote.generations == 2 }
    XCTAssertTrue(next)
    remote.allow(200)
    let events = try await second.value
    XCTAssertEqual(events.count, 102)
    // The first may have been stopped at its second step or at its third.
    XCTAssertTrue([102, 103].contains(remote.eventsGiven), "\(remote.eventsGiven)")
  }

  func testLeavingTheLoopStopsToo() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 1000)
    remote.allow(1)
    for try await _ in session.generate([1]) { break }
    remote.allow(1)
    // The engine would wait for 998 more steps if it went on.
    let info = try await session.info()
    XCTAssertEqual(info.vocabulary, 10)
    XCTAssertLessThanOrEqual(remote.eventsGiven, 2)
  }

  func testAGenerationThatWaitsCanBeCancelled() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 2)
    let first = Task { try await collect(session.generate([1])) }
    let began = await eventually { remote.generations == 1 }
    XCTAssertTrue(began)
    let second = Task { try await collect(session.generate([2])) }
    second.cancel()
    _ = try await second.value
    remote.allow(2)
    let events = try await first.value
    XCTAssertEqual(events.count, 4)
    _ = try await session.info()
    XCTAssertEqual(remote.generations, 1)
  }

  func testAnEngineThatIsToGiveMemoryBackIsMadeIdleBehindWhatRuns() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: 2)
    remote.relieve()
    let relieved = await eventually { remote.idles == 1 }
    XCTAssertTrue(relieved)
    let task = Task { try await collect(session.generate([1])) }
    let began = await eventually { remote.generations == 1 }
    XCTAssertTrue(began)
    remote.relieve()
    XCTAssertEqual(remote.idles, 1)
    remote.allow(2)
    let events = try await task.value
    XCTAssertEqual(events.count, 4)
    _ = try await session.info()
    XCTAssertEqual(remote.idles, 2)
    await session.close()
    remote.relieve()
    XCTAssertEqual(remote.idles, 2)
  }

  func testClosingStopsWhatRunsAndReleasesTheEngine() async throws {
    let remote = FakeEngine.Remote()
    let session = try await fakeSession(remote, steps: .max)
    let task = Task { try await collect(session.generate([1])) }
    let steps = Task {
      while !Task.isCancelled {
        remote.allow(1)
        try? await Task.sleep(for: .milliseconds(1))
      }
    }
    let began = await eventually { remote.eventsGiven > 0 }
    XCTAssertTrue(began)
    await session.close()
    steps.cancel()
    do {
      _ = try await task.value
      XCTFail("no error")
    } catch let error as EdgeKitError {
      XCTAssertEqual(error, .closed("the session is closed"))
    }
    let released = await eventually { remote.isReleased }
    XCTAssertTrue(released)
    do {
      _ = try await session.info()
      XCTFail("no error")
    } catch let error as EdgeKitError {
      XCTAssertEqual(error, .closed("the session is closed"))
    }
    await session.close()
  }

  func testAReleasedSessionFinishesWhatItBeganAndReleasesTheEngine() async throws {
    let remote = FakeEngine.Remote()
    var session: Session? = try await fakeSession(remote, steps: 3)
    let stream = try XCTUnwrap(session).generate([1])
    session = nil
    XCTAssertFalse(remote.isReleased)
    remote.allow(3)
    let events = try await collect(stream)
    XCTAssertEqual(events.count, 5)
    let released = await eventually { remote.isReleased }
    XCTAssertTrue(released)
  }

  func testAnEngineThatCannotBeMadeIsTheErrorOfOpening() async throws {
    let manifest = try Manifest(data: Data(minimalManifest.utf8), name: "edgekit.json")
    do {
      _ = try await Session(
        bundle: EdgeKit.Bundle(path: "fake", manifest: manifest),
        engine: { () throws(EdgeKitError) in throw EdgeKitError.budgetExceeded("too small", sufficientBytes: 7) })
      XCTFail("no error")
    } catch let error as EdgeKitError {
      XCTAssertEqual(error, .budgetExceeded("too small", sufficientBytes: 7))
    }
  }
}

func collect(_ stream: AsyncThrowingStream<Event, any Error>) async throws -> [Event] {
  var events: [Event] = []
  for try await event in stream { events.append(event) }
  return events
}
