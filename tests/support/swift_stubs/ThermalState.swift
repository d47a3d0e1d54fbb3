// What Foundation has on Apple's systems and not on Linux.

import Foundation

extension ProcessInfo {
  public enum ThermalState: Int, Sendable { case nominal, fair, serious, critical }
  public var thermalState: ThermalState { .nominal }
}
