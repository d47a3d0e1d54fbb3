// Whether the app is in front of a person: iOS slows down, then suspends one that is not.

import SwiftUI

@MainActor
final class Front {
  private var isActive = false

  /// Gets every phase of the scene; tells whether the app has just left the front. Something may
  /// cover it without closing it: a call, Control Center, the list of apps.
  func hasLeft(_ phase: ScenePhase) -> Bool {
    let wasActive = isActive
    isActive = phase == .active
    return wasActive && !isActive
  }

  /// Waits a while for the app to get there, as it does when it was just started.
  func isReached() async -> Bool {
    for _ in 0..<100 where !isActive { try? await Task.sleep(for: .milliseconds(100)) }
    return isActive
  }
}
