import SwiftUI
import UIKit

@main
struct ChatApplication: App {
  @UIApplicationDelegateAdaptor private var delegate: BackgroundEvents
  @Environment(\.scenePhase) private var phase

  var body: some Scene {
    WindowGroup { ChatScreen(model: delegate.model) }
      .onChange(of: phase) { _, now in if now == .active { delegate.model.onReturn() } }
  }
}

/// Holds the model, for which the system may start the application without a screen: when downloads of the background end.
@MainActor
final class BackgroundEvents: NSObject, UIApplicationDelegate {
  let model = ChatModel()

  func application(
    _ application: UIApplication, handleEventsForBackgroundURLSession identifier: String,
    completionHandler: @escaping () -> Void
  ) {
    model.handleEvents(completionHandler: completionHandler)
  }
}
