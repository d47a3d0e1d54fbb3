// As much of UIKit as the sample apps use; see SwiftUI.swift.

@MainActor public final class UIApplication {
  public static var shared: UIApplication { fatalError() }
  public var isIdleTimerDisabled = false
}
