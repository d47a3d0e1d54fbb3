// What every first screen has: the way to the measurement.

import SwiftUI

/// The first screen, with the measurement as the second one.
struct RootView: View {
  private let name = (try? Payload.read(in: Folders().model))?.name ?? ""

  var body: some View {
    FirstView()
      .navigationTitle(name)
      .toolbar { NavigationLink("Measure") { ContentView() } }
  }
}
