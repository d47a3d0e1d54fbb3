// Reads a photo with the system's decoder.

import CoreGraphics
import Foundation
import ImageIO

/// A photo, upright: for the screen, and for the model.
struct Photo: @unchecked Sendable {  // an image never changes
  let image: CGImage
  let pixels: Pixels

  /// Decodes a large photo smaller: its shorter side keeps at least `least` pixels, so that one of
  /// 50 megapixels takes no more memory than one of a few.
  init(_ data: Data, least: Int) throws {
    let unread = Failure(.usage, "The file is not a photo that iOS can read.")
    guard let source = CGImageSourceCreateWithData(data as CFData, nil),
      let facts = CGImageSourceCopyPropertiesAtIndex(source, 0, nil) as? [CFString: Any],
      let width = facts[kCGImagePropertyPixelWidth] as? Int,
      let height = facts[kCGImagePropertyPixelHeight] as? Int, width > 0, height > 0
    else { throw unread }
    let options: [CFString: Any] = [
      kCGImageSourceCreateThumbnailFromImageAlways: true,
      kCGImageSourceCreateThumbnailWithTransform: true,
      kCGImageSourceShouldCacheImmediately: true,
      kCGImageSourceThumbnailMaxPixelSize: decodedSide(width, height, least: least),
    ]
    guard let image = CGImageSourceCreateThumbnailAtIndex(source, 0, options as CFDictionary)
    else { throw unread }
    self.image = image
    pixels = try Self.pixels(image)
  }

  /// With white behind what is transparent.
  private static func pixels(_ image: CGImage) throws -> Pixels {
    let (width, height) = (image.width, image.height)
    var bytes = [UInt8](repeating: 255, count: 4 * width * height)
    let isDrawn = bytes.withUnsafeMutableBytes { raw in
      guard let space = CGColorSpace(name: CGColorSpace.sRGB),
        let context = CGContext(
          data: raw.baseAddress, width: width, height: height, bitsPerComponent: 8,
          bytesPerRow: 4 * width, space: space,
          bitmapInfo: CGImageAlphaInfo.noneSkipLast.rawValue)
      else { return false }
      context.draw(image, in: CGRect(x: 0, y: 0, width: width, height: height))
      return true
    }
    guard isDrawn else { throw Failure(.memory, "There is no room for a photo of that size.") }
    return Pixels(width: width, height: height, bytes: bytes)
  }
}
