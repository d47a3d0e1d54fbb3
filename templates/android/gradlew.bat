@echo off
rem Runs the Gradle that gradle\wrapper\gradle-wrapper.properties names; the first time, it is
rem downloaded and its SHA-256 compared.
setlocal
set "JAVA=java"
if defined JAVA_HOME set "JAVA=%JAVA_HOME%\bin\java"
set "GRADLE="
for /f "delims=" %%g in ('call "%JAVA%" "%~dp0gradle\wrapper\FetchGradle.java" "%~dp0."') do set "GRADLE=%%g"
if not defined GRADLE exit /b 1
call "%GRADLE%" %*
