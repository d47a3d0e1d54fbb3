"""The section `app` of a recipe."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from etdeploy.recipe.choice import Takes, all_different
from etdeploy.recipe.sections.base import Section

Abi = Literal["arm64-v8a", "x86_64"]
Abis = Annotated[
    Annotated[
        tuple[Abi, ...],
        Field(strict=False, min_length=1, json_schema_extra={"uniqueItems": True}),
        AfterValidator(all_different),
    ],
    Takes("a list of arm64-v8a, x86_64, or both", words=()),
]
AppRuntime = Literal["auto", "prebuilt", "source"]
AppBuild = Literal["auto", "gradle", "sdk"]
AppTask = Literal[
    "auto", "image-classification", "text-generation", "automatic-speech-recognition", "tensor"
]


class App(Section):
    """The sample app: `etdeploy app`, and `etdeploy run --as app`."""

    id: str | None = None
    """The application id on Android, the bundle identifier on iOS. By default `org.example.` and
    the recipe's name."""

    name: str | None = Field(default=None, min_length=1, max_length=40)
    """The name below the icon; by default the recipe's name."""

    task: AppTask = "auto"
    """What the app's first screen does: `image-classification` labels photos, `text-generation`
    chats, `automatic-speech-recognition` writes down speech, `tensor` measures alone, which every
    app also can. `auto` follows the model's task as far as the app supports it."""

    runtime: AppRuntime = "auto"
    """Where the app's ExecuTorch comes from. `prebuilt`: ExecuTorch's own release, from Maven on
    Android and by SwiftPM on iOS; `source`: built from a checkout, on Android only; `auto` takes
    the release if it has everything that the program needs."""

    bundled: bool | None = None
    """Whether the app contains the program; by default if it is smaller than 100 MB. Otherwise a
    run copies it to the device beside the app."""

    abis: Abis = ("arm64-v8a",)
    """The processors that an Android app is for. A run builds it for the device's own."""

    build: AppBuild = "auto"
    """What builds an Android app: `gradle`, or `sdk`, the tools of the Android SDK alone. `auto`
    takes Gradle if it is installed."""

    aar: str | None = None
    """The `.aar` of ExecuTorch's release for a build without Gradle; by default the one that Gradle
    or Maven has downloaded before."""

    team: str | None = None
    """The team that signs an iOS app: 10 letters and digits. By default ETDEPLOY_TEAM, else the
    only one of the keychain."""
