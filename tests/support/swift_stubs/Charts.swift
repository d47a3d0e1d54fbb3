// As much of Swift Charts as the sample apps use; see SwiftUI.swift.

import SwiftUI

public protocol ChartContent {}
public protocol Plottable {}
extension String: Plottable {}
extension Int: Plottable {}
extension Double: Plottable {}
public struct PlottableValue<Value: Plottable> {
  public static func value(_ label: LocalizedStringKey, _ value: Value) -> PlottableValue<Value> {
    fatalError()
  }
  public static func value(
    _ label: LocalizedStringKey, _ range: Range<Value>
  ) -> PlottableValue<Value> where Value: Comparable {
    fatalError()
  }
}
@resultBuilder public struct ChartContentBuilder {
  public static func buildBlock<T: ChartContent>(_ content: T) -> T { content }
}
public struct BarMark: ChartContent {
  public init<X: Plottable, Y: Plottable>(x: PlottableValue<X>, y: PlottableValue<Y>) {}
}
extension ChartContent {
  public func foregroundStyle<S: ShapeStyle>(_ style: S) -> some ChartContent { self }
}
public struct Chart<Content: ChartContent>: Stub {
  public init<Data: RandomAccessCollection, ID: Hashable>(
    _ data: Data, id: KeyPath<Data.Element, ID>,
    @ChartContentBuilder content: @escaping (Data.Element) -> Content
  ) {}
}
