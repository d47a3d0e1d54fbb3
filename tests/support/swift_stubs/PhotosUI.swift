// As much of PhotosUI as the sample apps use; see SwiftUI.swift.

import SwiftUI

public protocol Transferable {}
extension Data: Transferable {}
public struct PhotosPickerItem: Equatable, Hashable, Sendable {
  public func loadTransferable<T: Transferable>(type: T.Type) async throws -> T? { nil }
}
public struct PHPickerFilter: Sendable { public static let images = PHPickerFilter() }
public struct PhotosPicker: Stub {
  public nonisolated init(
    _ title: LocalizedStringKey, selection: Binding<PhotosPickerItem?>,
    matching filter: PHPickerFilter? = nil
  ) {}
}
