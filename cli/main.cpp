// The millrace command.
int main() {
  return 0;
}
