"""Programs that use Pairgate, small and complete."""
